"""Root file systems to make images of: small ones, from programs of this machine."""

import gzip
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["compile_static", "docker_archive", "small_root", "tar_of", "tar_with"]

_PROGRAMS = ("cat", "chown", "env", "id", "ls", "mkdir", "rm", "sh", "stat", "touch")


def small_root(top: Path) -> Path:
    """Fill a directory with a system that has a shell, a few programs, and what they need."""
    (top / "usr" / "bin").mkdir(parents=True)
    (top / "bin").symlink_to("usr/bin")
    (top / "etc").mkdir()
    (top / "etc" / "os-release").write_text("ID=small\n")
    (top / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\nsomebody:x:1000:1000::/:/bin/sh\n")
    for name in _PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        if found is None:
            pytest.skip(f"this machine has no program {name!r} to make an image of")
        program = Path(found).resolve()
        shutil.copy(program, top / "usr" / "bin" / name)
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+)", listed):
            target = top / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    return top


def compile_static(target: Path) -> None:
    """Make a program that needs nothing but the kernel, and says what its variable GREETING is."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    source = '#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv("GREETING")); return 7; }\n'
    if compiler is None:
        pytest.skip("this machine has no C compiler")
    command = [compiler, "-static", "-x", "c", "-o", target, "-"]
    if subprocess.run(command, input=source.encode(), capture_output=True, check=False).returncode:
        pytest.skip("this machine's C compiler makes no static programs")


def tar_of(top: Path, target: Path, compression: str = "") -> Path:
    """Pack a directory as a tar archive, which may be compressed (`gz`, `xz`)."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name in sorted(os.listdir(top)):
            archive.add(top / name, name)
    pack: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gz": gzip.compress, "xz": lzma.compress}
    target.write_bytes(pack[compression](plain.getvalue()))
    return target


def tar_with(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return a tar archive of exactly these members."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def docker_archive(*layers: bytes) -> bytes:
    """Return what `docker save` writes for an image of these layers."""
    names = [f"blobs/sha256/{number:064d}" for number in range(len(layers))]
    files = dict(zip(names, layers, strict=True))
    files["config.json"] = b'{"config": {"Env": ["GREETING=hello", "HOME=/elsewhere"]}}'
    files["manifest.json"] = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    return tar_with(*((tarfile.TarInfo(name), content) for name, content in files.items()))
