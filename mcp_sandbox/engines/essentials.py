"""What every root file system gets, whatever it brought: the places that are mounted, names, accounts, a home."""

import stat
from typing import Final

from mcp_sandbox.engines.skeleton import GENERATED, NO_SERVICES, SUDO
from mcp_sandbox.hostfs.tree_writer import Attributes, TreeWriter

__all__ = ["complete", "make_places"]

_DIRECTORIES: Final = {
    "proc": 0o755,
    "dev": 0o755,
    "sys": 0o755,
    "run": 0o755,
    "workspace": 0o755,
    "etc": 0o755,
    "root": 0o700,
    "tmp": 0o1777,
    "var/tmp": 0o1777,
    "var/spool/mcp-sandbox": 0o755,
}
_MOUNTED: Final = ("proc", "dev", "sys")
_REPLACED: Final = ("etc/hosts", "etc/hostname", "etc/resolv.conf")
_ACCOUNTS: Final = {"etc/passwd": "root:x:0:0:root:/root:/bin/sh", "etc/group": "root:x:0:"}
_CONFIGURATION_BYTES_MAX: Final = 1 << 20


def make_places(writer: TreeWriter) -> None:
    """Make the directories that every sandbox has; a link in the place of one is replaced, never followed. Blocks.

    Raises:
        InvalidRequestError: `/var` is a link or a file.
    """
    for path in _MOUNTED:
        writer.remove(path)
    for path, mode in _DIRECTORIES.items():
        if mode & stat.S_ISVTX or writer.kind(path) != stat.S_IFDIR:
            writer.directory(path, Attributes(mode=mode))


def complete(writer: TreeWriter) -> None:
    """Make those, and add to a tree what else a sandbox needs. Blocks.

    Raises:
        InvalidRequestError: `/var` is a link or a file.
    """
    make_places(writer)
    for path in _REPLACED:
        _put(writer, path, GENERATED[path])
    if writer.kind("etc/nsswitch.conf") is None:
        _put(writer, "etc/nsswitch.conf", GENERATED["etc/nsswitch.conf"])
    for path, line in _ACCOUNTS.items():
        _complete_accounts(writer, path, line)
    git = (writer.read("etc/gitconfig", _CONFIGURATION_BYTES_MAX) or b"").decode("utf-8", "surrogateescape")
    _put(writer, "etc/gitconfig", f"{git.rstrip()}\n{GENERATED['etc/gitconfig']}".lstrip())
    if writer.kind("etc/apt") == stat.S_IFDIR:
        _put(writer, "etc/apt/apt.conf.d/90sandbox", GENERATED["etc/apt/apt.conf.d/90sandbox"])
    if writer.kind("usr/sbin") == stat.S_IFDIR and writer.kind("usr/sbin/policy-rc.d") is None:
        _put(writer, "usr/sbin/policy-rc.d", NO_SERVICES, 0o755)
    if writer.kind("usr/local/bin") == stat.S_IFDIR and writer.kind("usr/local/bin/sudo") is None:
        _put(writer, "usr/local/bin/sudo", SUDO, 0o755)


def _put(writer: TreeWriter, path: str, text: str, mode: int = 0o644) -> None:
    data = text.encode("utf-8", "surrogateescape")
    writer.file(path, Attributes(mode=mode), lambda size: data, len(data))


def _complete_accounts(writer: TreeWriter, path: str, root: str) -> None:
    """See to it that root is called so, and lives in /root, as `HOME` says."""
    text = (writer.read(path, _CONFIGURATION_BYTES_MAX) or b"").decode("utf-8", "surrogateescape")
    lines = [line for line in text.splitlines() if line]
    for number, line in enumerate(lines):
        fields = line.split(":")
        if fields[0] == "root":
            if len(fields) > 5:
                fields[5] = "/root"
            lines[number] = ":".join(fields)
            break
    else:
        lines.insert(0, root)
    _put(writer, path, "\n".join(lines) + "\n")
