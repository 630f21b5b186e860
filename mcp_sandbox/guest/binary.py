"""Where the compiled guest agent is."""

import platform
from pathlib import Path

from mcp_sandbox.core.errors import ProviderUnavailableError

__all__ = ["guest_binary"]


def guest_binary(machine: str | None = None) -> bytes:
    """Return the static program for `machine` (as `uname -m` says it), by default this one.

    Raises:
        ProviderUnavailableError: This installation does not carry it.
    """
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine or platform.machine(), machine or platform.machine())
    path = Path(__file__).parent / "bin" / f"guest-{name}"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ProviderUnavailableError(
            "The guest agent is missing",
            why=f"this installation of mcp-sandbox carries no guest-{name}",
            fix="Install it again on this machine; a source install builds it with `cc`, else with `ziglang`",
        ) from None
