"""The read-only base of every sandbox: a generated root, and a mirror of the host's directories below /usr.

What is not listed here does not exist inside. Files that may hold credentials (apt's auth files, npmrc, environment)
are never copied, nor is anything that the host does not let everybody read: who is root inside could read it.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final

from mcp_sandbox.engines.identity import Identity

__all__ = [
    "GENERATED",
    "NO_SERVICES",
    "SUDO",
    "base_fingerprint",
    "copy_public",
    "fill_root",
    "fill_usr",
    "private_paths",
]

VERSION: Final = "3"
_DIRECTORIES: Final = (
    "dev proc tmp run root home srv mnt opt usr workspace etc var/tmp var/cache var/log var/lib "
    "var/spool/mcp-sandbox var/lib/apt/lists/partial var/cache/apt/archives/partial var/log/apt var/cache/debconf"
).split()
_MODES: Final = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC: Final = (
    "adduser.conf alternatives apt bash.bashrc ca-certificates ca-certificates.conf debconf.conf debian_version "
    "deluser.conf fonts inputrc java-17-openjdk java-21-openjdk ld.so.cache ld.so.conf ld.so.conf.d locale.alias "
    "localtime login.defs lsb-release magic manpath.config mime.types os-release pam.d perl profile protocols python3 "
    "redhat-release rpc security services shells skel ssl/certs ssl/openssl.cnf terminfo timezone vim xattr.conf"
).split()
_FINGERPRINTED: Final = (
    "/usr", "/usr/bin", "/usr/lib", "/usr/share", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/etc/passwd",
    "/etc/alternatives", "/var/lib/dpkg/status", "/var/lib/rpm",
)  # fmt: skip
_CREDENTIAL_URL: Final = re.compile(rb"://[^/\s@]+@")
_SYSTEM_IDS_END: Final = 1000
_READ, _ENTER = 0o4, 0o5
"""What others may do with a public file and a public directory."""
GENERATED: Final = {
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/hostname": "sandbox\n",
    "etc/resolv.conf": "",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
    "etc/shadow": "root:*:19000:0:99999:7:::\n",
    # Whoever owned the project's files outside, here there is one user, who is to work on them.
    "etc/gitconfig": "[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n",
    "etc/apt/apt.conf.d/90sandbox": 'APT::Sandbox::User "root";\n',
}
SUDO: Final = """#!/bin/sh
# The user inside is root already: run the command as it is.
while [ $# -gt 0 ]; do
  case "$1" in
    --) shift; break ;;
    -u|-g|-p|-C|-h|-U|-r|-t|-T|-D|-R) shift 2 ;;
    -*) shift ;;
    *=*) export "$1"; shift ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || exit 0
exec "$@"
"""
NO_SERVICES: Final = """#!/bin/sh
# Installing a package starts no service here (invoke-rc.d asks this program): nothing would look after it.
exit 101
"""


def base_fingerprint(identity: Identity, *, mirrored: bool) -> str:
    """Return a name that changes when the host's /usr or these rules do."""
    seen = [VERSION, str(identity.start), str(mirrored)]
    for path in _FINGERPRINTED:
        with contextlib.suppress(OSError):
            seen.append(f"{path} {Path(path).stat().st_mtime_ns}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]


def _is_public(path: Path) -> bool:
    mode = path.stat().st_mode
    wanted = _ENTER if stat.S_ISDIR(mode) else _READ
    return mode & wanted == wanted


def _is_harmless(path: Path) -> bool:
    try:
        return not _CREDENTIAL_URL.search(path.read_bytes())
    except OSError:
        return False  # what this user cannot read stays outside


def copy_public(source: Path, target: Path) -> None:
    """Copy a file, a link as a link, or a tree of them, but for what may hold credentials."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif not _is_public(source) or source.name.startswith("auth.conf"):
        return
    elif source.is_dir():
        target.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):
            for entry in sorted(source.iterdir()):
                copy_public(entry, target / entry.name)
    elif source.is_file() and _is_harmless(source):
        shutil.copyfile(source, target)
        target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _accounts(name: str) -> str:
    """Return the system's own accounts from /etc/passwd or /etc/group, without people and without members."""
    kept: list[str] = []
    for line in Path("/etc", name).read_text("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) < 4 or not fields[2].isdigit():
            continue
        if int(fields[2]) < _SYSTEM_IDS_END or fields[0] in ("nobody", "nogroup"):
            if name == "group":
                fields[3] = ""
            elif fields[0] == "root":
                fields[5:] = ["/root", "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"]
            kept.append(":".join(fields))
    return "\n".join(kept) + "\n"


def fill_root(root: Path) -> None:
    """Fill an empty directory with the skeleton of `/`."""
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(_MODES.get(name, 0o755))
    for name in _LINKS:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    for name in _ETC:
        source = Path("/etc", name)
        if source.is_symlink() or source.exists():
            (root / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
            copy_public(source, root / "etc" / name)
    for name in ("passwd", "group"):
        (root / "etc" / name).write_text(_accounts(name), "utf-8")
    for name, text in GENERATED.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text, "utf-8")


def private_paths(top: Path) -> list[Path]:
    """Return the files and directories of a tree that are not everybody's to read, not what lies below them. Blocks."""
    found: list[Path] = []
    stack = [str(top)]
    while stack:
        with contextlib.suppress(OSError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                try:
                    mode = entry.stat(follow_symlinks=False).st_mode
                except OSError:
                    continue  # gone meanwhile
                if stat.S_ISDIR(mode) and mode & _ENTER == _ENTER:
                    stack.append(entry.path)
                elif not stat.S_ISLNK(mode) and not (stat.S_ISREG(mode) and mode & _READ):
                    found.append(Path(entry.path))
    return found


def fill_usr(usr: Path) -> None:
    """Put our own programs on top of the host's /usr, and take away what is private there."""
    host = Path("/usr")
    for path in private_paths(host):
        hidden = usr / path.relative_to(host)
        _mirror(hidden.parent, path.parent, usr)
        if hidden.is_dir():
            shutil.rmtree(hidden)
        os.mknod(hidden, stat.S_IFCHR)  # a whiteout of overlayfs
    for name, text in {"local/bin/sudo": SUDO, "sbin/policy-rc.d": NO_SERVICES}.items():
        if not (host / name).exists():
            _mirror((usr / name).parent, (host / name).parent, usr)
            (usr / name).write_text(text, "utf-8")
            (usr / name).chmod(0o755)


def _mirror(directory: Path, original: Path, top: Path) -> None:
    """Make a directory, and those above it, look like the originals: overlayfs shows the upper one's look."""
    if directory == top or directory.is_dir():
        return
    _mirror(directory.parent, original.parent, top)
    directory.mkdir()
    with contextlib.suppress(FileNotFoundError):
        shutil.copystat(original, directory)
