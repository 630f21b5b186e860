"""Builds the guest agent. Run by hatchling; `python -m mcp_sandbox.guest.build` rebuilds it in a source tree."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["GuestBuildHook", "compile_guest"]

FLAGS = ("-std=gnu11", "-Os", "-static", "-s", "-Wall", "-Wextra", "-Wno-address-of-packed-member")
ZIG = (sys.executable, "-m", "ziglang", "cc")
ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def _native_compiler() -> tuple[str, ...] | None:
    """Return the machine's own C compiler if it can link a static program for Linux, else `None`."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        return None
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "probe.c")
        source.write_text("#include <linux/openat2.h>\nint main(void) { return 0; }\n", "utf-8")
        probe = subprocess.run(
            [compiler, "-static", "-o", f"{scratch}/probe", str(source)], capture_output=True, check=False
        )
    return (compiler,) if probe.returncode == 0 else None


def _wanted() -> tuple[str, ...]:
    """Return the architectures to build for: this machine's, or those that a release names."""
    named = os.environ.get("MCP_SANDBOX_GUEST_ARCHITECTURES")
    if named:
        return tuple(named.split(","))
    machine = ARCHITECTURES.get(platform.machine().lower())
    return (machine,) if machine and sys.platform == "linux" else tuple(sorted(set(ARCHITECTURES.values())))


def _compiler_for(architecture: str) -> tuple[str, ...]:
    native = _native_compiler()
    if native and ARCHITECTURES.get(platform.machine().lower()) == architecture:
        return native
    return (*ZIG, "-target", f"{architecture}-linux-musl")


def compile_guest(directory: Path, architecture: str) -> Path:
    """Compile one static binary, `bin/guest-<architecture>` below `directory`, which holds `src/`.

    Raises:
        subprocess.CalledProcessError: The compiler refused; its words are on standard error.
    """
    target = directory / "bin" / f"guest-{architecture}"
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_suffix(".new")
    sources = sorted(str(path) for path in (directory / "src").glob("*.c"))
    subprocess.run([*_compiler_for(architecture), *FLAGS, "-o", str(fresh), *sources], check=True)
    return fresh.replace(target)


class GuestBuildHook(BuildHookInterface[Any]):
    """Puts the guest agent into the wheel, and into the source tree of an editable install."""

    def dependencies(self) -> list[str]:
        """Ask for `ziglang` only where this machine's compiler will not do."""
        machine = ARCHITECTURES.get(platform.machine().lower())
        return [] if _native_compiler() and _wanted() == (machine,) else ["ziglang>=0.15"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build for every wanted architecture, and name the wheel for what it carries."""
        if self.target_name != "wheel":
            return
        directory = Path(self.root, "mcp_sandbox", "guest")
        for architecture in _wanted():
            compile_guest(directory, architecture)
        if len(_wanted()) == 1:
            build_data["tag"] = f"py3-none-linux_{_wanted()[0]}"


if __name__ == "__main__":
    for wanted in _wanted():
        compile_guest(Path(__file__).parent, wanted)
