"""The first half of a Debian or Ubuntu system: packages fetched, checked and unpacked by `debootstrap` on this machine.

None of their scripts runs here: `--foreign` leaves them to the second half, which runs inside a sandbox.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from mcp_sandbox.core.errors import InvalidRequestError, ProviderError, UnsupportedError
from mcp_sandbox.core.image import Recipe

__all__ = ["Debootstrap", "checked", "find_debootstrap"]

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED_ON: Final = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_SUITE: Final = re.compile(r"[a-z][a-z0-9-]{0,31}\Z")
_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]{1,127}\Z")
_MIRROR: Final = re.compile(r"(https?|file)://[!-~]+\Z")
_BUILD_S: Final = 1800.0
_TOLD_LINES: Final = 3


class _Distribution(NamedTuple):
    mirror: str
    keyring: str
    package: str
    """Which brings the keyring."""


_DISTRIBUTIONS: Final = {
    "debian": _Distribution(
        "http://deb.debian.org/debian", "/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"
    ),
    "ubuntu": _Distribution(
        "http://archive.ubuntu.com/ubuntu", "/usr/share/keyrings/ubuntu-archive-keyring.gpg", "ubuntu-keyring"
    ),
}


def checked(recipe: Recipe) -> Recipe:
    """Return a recipe whose parts can be told to `debootstrap`.

    Raises:
        InvalidRequestError: One cannot.
    """
    wrong = next((name for name in recipe.packages if not _PACKAGE.match(name)), None)
    if recipe.distribution not in _DISTRIBUTIONS or not _SUITE.match(recipe.suite):
        raise InvalidRequestError(
            f"No image built from '{recipe.distribution}:{recipe.suite}'"[:200], why="no such system can be built",
            fix=f"Name one as {' or '.join(f'{name}:SUITE' for name in _DISTRIBUTIONS)}, for example debian:bookworm",
        )  # fmt: skip
    if wrong is not None or (recipe.mirror and not _MIRROR.match(recipe.mirror)):
        what = f"{wrong[:80]!r} is no name of a package" if wrong is not None else "the mirror is no URL"
        raise InvalidRequestError("No image built", why=what, fix="Correct it")
    return recipe


class Debootstrap(NamedTuple):
    """The program, as this user can run it."""

    command: tuple[str, ...]
    version: str

    async def unpack(self, recipe: Recipe, target: Path, log: Path) -> None:
        """Fetch the packages of a recipe and unpack them into a new directory.

        Raises:
            UnsupportedError: What checks the packages' signatures is not there.
            ProviderError: It failed; says with which words.
        """
        distribution = _DISTRIBUTIONS[recipe.distribution]
        if not await anyio.Path(distribution.keyring).is_file():
            raise UnsupportedError(
                "No image built", why=f"the keys of {recipe.distribution} are not at {distribution.keyring}",
                fix=f"Install it: sudo apt-get install {distribution.package}",
            )  # fmt: skip
        options = ["--foreign", "--variant=minbase", "--force-check-gpg", f"--keyring={distribution.keyring}"]
        if recipe.packages:
            options.append(f"--include={','.join(recipe.packages)}")
        command = [*self.command, *options, recipe.suite, str(target), recipe.mirror or distribution.mirror]
        with log.open("wb") as output:
            status = await _run(command, output.fileno())
        if status != 0:
            said = [line for line in (await anyio.Path(log).read_text("utf-8", "replace")).splitlines() if line.strip()]
            raise ProviderError(
                "No image built", why=f"debootstrap said: {' / '.join(said[-_TOLD_LINES:])}"[:1000],
                fix="Check the names and the network (it honours http_proxy), then try again; or give --mirror",
            )  # fmt: skip


async def _run(command: list[str], output: int) -> int:
    """Run a program to its end, or end it with all that it started."""
    environment = {"PATH": _PATH, "LC_ALL": "C", "HOME": "/nonexistent", "DEBIAN_FRONTEND": "noninteractive"}
    environment |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
    )
    try:
        with anyio.fail_after(_BUILD_S):
            return await process.wait()
    except TimeoutError:
        raise ProviderError(
            "No image built", why=f"debootstrap did not finish within {_BUILD_S:g} s", fix="Use a faster mirror"
        ) from None
    finally:
        if process.returncode is None:
            with anyio.CancelScope(shield=True):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        await process.aclose()


async def find_debootstrap() -> Debootstrap:
    """Find the program.

    Raises:
        UnsupportedError: It is not there, or this user cannot run it.
    """
    program, fakeroot = shutil.which("debootstrap", path=_PATH), shutil.which("fakeroot", path=_PATH)
    if program is None:
        raise UnsupportedError(
            "No image built", why="there is no program `debootstrap` on this machine",
            fix="Install it: sudo apt-get install debootstrap fakeroot; or import what `docker save` writes elsewhere: "
            "mcp-sandbox image import FILE --name NAME",
        )  # fmt: skip
    if os.geteuid() != 0 and fakeroot is None:
        raise UnsupportedError(
            "No image built", why="debootstrap wants to be root, or to believe so, and there is no program `fakeroot`",
            fix="Install it (sudo apt-get install fakeroot), or run this command as root",
        )  # fmt: skip
    command = (program,) if os.geteuid() == 0 or fakeroot is None else (fakeroot, "--", program)
    shown = await anyio.run_process([program, "--version"], check=False, env={"PATH": _PATH})
    return Debootstrap(command, shown.stdout.decode("utf-8", "replace").strip()[:100])
