"""Which user ids a sandbox has."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_sandbox.core.errors import ProviderUnavailableError

__all__ = ["Identity", "choose_identity"]

RANGE_START: Final = 1_879_048_192
"""The first id behind systemd's container ranges (524288 to 1879048191), and far above any in /etc/subuid."""
RANGE_COUNT: Final = 65_536
INITIAL_NAMESPACE: Final = 0xEFFFFFFD
"""PROC_USER_INIT_INO of the kernel."""
OWNERS: Final = range(RANGE_START + RANGE_COUNT, 2**32 - 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Ids of a sandbox, as this process's user namespace knows them."""

    start: int
    """What root inside is outside; never 0."""
    count: int
    """How many ids there are; 1 for an ordinary user."""
    gid: int
    is_nested: bool = False
    """Whether this process is root of a user namespace only, as in some containers."""
    owners: range = range(0)
    """Ids that own nothing; each sandbox's namespaces are made by one of them."""

    @property
    def is_range(self) -> bool:
        """Whether files can have several owners."""
        return self.count > 1

    def new_owner(self) -> int:
        """Return an id for the kernel to count a sandbox's processes by; 0 where there is but one id.

        Two sandboxes that got the same one would share their limit.
        """
        return secrets.choice(self.owners) if self.owners else 0


def _mapped() -> list[tuple[int, int]]:
    lines = Path("/proc/self/uid_map").read_text("ascii").splitlines()
    return [(int(first), int(count)) for first, _, count in (line.split() for line in lines)]


def _is_nested() -> bool:
    return Path("/proc/self/ns/user").stat().st_ino != INITIAL_NAMESPACE


def choose_identity() -> Identity:
    """Return one id for an ordinary user, a range of unprivileged ones for root.

    Raises:
        ProviderUnavailableError: Root of a user namespace that has no other id.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return Identity(start=uid, count=1, gid=gid)
    extents = _mapped()
    if any(first <= RANGE_START and first + count >= OWNERS.stop for first, count in extents):
        return Identity(start=RANGE_START, count=RANGE_COUNT, gid=RANGE_START, owners=OWNERS, is_nested=_is_nested())
    first, count = max(extents, key=lambda extent: extent[1])
    if count < 4:
        raise ProviderUnavailableError(
            "No user id for a sandbox",
            why="this process is root of a user namespace that maps no other id, and a sandbox never runs as root",
            fix="Run mcp-sandbox as an ordinary user, or give the container a range of ids",
        )
    half = count // 2
    return Identity(
        start=first + half, count=count - half, gid=first + half, owners=range(first + half // 2, first + half),
        is_nested=_is_nested(),
    )  # fmt: skip
