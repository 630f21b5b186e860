"""Who commands are in a container: an ordinary user whom the image knows, or one that is added to it."""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["SandboxUser", "choose_user", "first_file", "with_entries"]

UID: Final = 1000
NAME: Final = "sandbox"
_ROOT: Final = ("", "0", "root")
_TABLE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxUser:
    """The user of every command."""

    uid: int
    gid: int
    name: str
    home: str
    known: bool
    """Whether the image has an entry for it."""


def choose_user(image_user: str, passwd: bytes | None, owner: tuple[int, int] | None = None) -> SandboxUser:
    """Return the user to be.

    Args:
        image_user: The user that the image names for its programs; not taken if it is root.
        passwd: The image's table of users, if it has one.
        owner: The ids that must be taken, such as those of a mounted project's owner.
    """
    entries = [line.split(":") for line in (passwd or b"").decode("utf-8", "replace").splitlines()]
    table = [(e[0], int(e[2]), int(e[3]), e[5]) for e in entries if len(e) > 6 and e[2].isdigit() and e[3].isdigit()]
    name, _, group = image_user.partition(":")
    uid, gid = UID, UID
    if owner is not None:
        uid, gid = owner
    elif name not in _ROOT:
        found = next((entry for entry in table if name in (entry[0], str(entry[1]))), None)
        if found is not None and found[1]:
            uid, gid = found[1], found[2] or found[1]
        elif name.isdigit() and int(name):
            uid = gid = int(name)
        if group.isdigit() and int(group) and uid != UID:
            gid = int(group)
    known = next((entry for entry in table if entry[1] == uid), None)
    if known is None:
        taken = {entry[0] for entry in table}
        called = NAME if NAME not in taken else f"{NAME}-{uid}"
        return SandboxUser(uid=uid, gid=gid, name=called, home=f"/home/{called}", known=False)
    home = known[3] if known[3].startswith(("/home/", "/root", "/var/lib/", "/opt/", "/srv/")) else f"/home/{known[0]}"
    return SandboxUser(uid=uid, gid=gid if owner else known[2] or gid, name=known[0], home=home, known=True)


def with_entries(user: SandboxUser, passwd: bytes | None, group: bytes | None) -> Iterator[tuple[str, bytes]]:
    """Yield the tables that name a user whom the image does not know, with their paths."""
    if user.known:
        return
    root = b"root:x:0:0:root:/root:/bin/sh\n" if passwd is None else _ended(passwd)
    yield "etc/passwd", root + f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/bin/sh\n".encode()
    groups = b"root:x:0:\n" if group is None else _ended(group)
    if not any(line.split(b":")[2:3] == [str(user.gid).encode()] for line in groups.splitlines()):
        yield "etc/group", groups + f"{user.name}:x:{user.gid}:\n".encode()


def _ended(table: bytes) -> bytes:
    return table if not table or table.endswith(b"\n") else table + b"\n"


def first_file(archive: bytes) -> bytes | None:
    """Return the content of the first member of a tar archive, if that is a plain file of a sensible size."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            member = tar.next()
            if member is None or not member.isreg() or member.size > _TABLE_MAX:
                return None
            file = tar.extractfile(member)
            return file.read() if file is not None else None
    except tarfile.TarError:
        return None
