"""Which runsc there is, and whether it will do. Users bring their own: it is no Python package."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio.to_thread

from mcp_sandbox.core.errors import ProviderUnavailableError

__all__ = ["Runsc", "find_runsc"]

VARIABLE: Final = "MCP_SANDBOX_RUNSC"
OLDEST: Final = 20240520
"""The first ones that leave empty memory out of a checkpoint that is not compressed."""
VERSION_S: Final = 10.0
_HOW: Final = (
    "Install it: `sudo apt-get install runsc` on Debian 13 or later; elsewhere the one file that "
    "https://gvisor.dev/docs/user_guide/install/ names, in a directory of PATH or named by " + VARIABLE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runsc:
    """A program that will do."""

    path: str
    version: str
    """As it says itself; checkpoints are read by the same one only."""


async def find_runsc() -> Runsc:
    """Return the runsc that `MCP_SANDBOX_RUNSC` names, else the first one in `PATH`.

    Raises:
        ProviderUnavailableError: There is none, or it is too old; says which one is needed and how to get it.
    """
    return await anyio.to_thread.run_sync(_find)


def _find() -> Runsc:
    named = os.environ.get(VARIABLE)
    path = named or shutil.which("runsc", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/bin:/usr/bin")
    if not path:
        raise _unusable("there is no program runsc in PATH", _HOW)
    try:
        path = str(Path(path).resolve(strict=True))
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        where = f"what {VARIABLE} names" if named else "the runsc in PATH"
        raise _unusable(f"{where} does not run ({type(error).__name__})", _HOW) from error
    version = said.splitlines()[0].removeprefix("runsc version ").strip() if said else ""
    date = re.search(r"20\d{6}", version)
    if date is not None and int(date.group()) < OLDEST:
        raise _unusable(f"it is {version}, and the oldest that will do is of May 2024", _HOW)
    return Runsc(path=path, version=version)


def _unusable(why: str, fix: str) -> ProviderUnavailableError:
    return ProviderUnavailableError("gVisor cannot be used", why=why, fix=fix)
