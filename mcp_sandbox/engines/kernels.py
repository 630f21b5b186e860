"""Which kernel a sandbox really runs on: the agent inside says what it is told, and that shows what is in between."""

from typing import Final, NamedTuple

from mcp_sandbox.core.capability import Isolation

__all__ = ["Kernel", "boundary"]

_GVISOR_VERSION: Final = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
"""What gVisor answers to `uname -v` (pkg/sentry/syscalls/linux/linux64.go), whatever its release says."""


class Kernel(NamedTuple):
    """What `uname` says inside."""

    release: str = ""
    version: str = ""

    @classmethod
    def told(cls, text: bytes) -> "Kernel":
        """Return what an agent's greeting says; nothing if it says nothing."""
        names = text.decode("utf-8", "replace").split("\0")
        return cls(names[0], names[1]) if len(names) > 2 else cls()

    @property
    def is_gvisor(self) -> bool:
        """Whether it is the kernel of gVisor."""
        return self.version == _GVISOR_VERSION or "gvisor" in self.release.lower()


def boundary(inside: Kernel, host_release: str, promised: Isolation) -> Isolation:
    """Return what keeps a sandbox apart, as far as it was seen.

    Args:
        inside: What the agent was told.
        host_release: The release of the kernel that the engine runs on.
        promised: What the runtime is known for; of it only a microVM is believed, and only with another kernel inside.
    """
    if inside.is_gvisor:
        return Isolation.USER_KERNEL
    if promised is Isolation.MICROVM and inside.release and inside.release != host_release:
        return Isolation.MICROVM
    return Isolation.CONTAINER
