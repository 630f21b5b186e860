"""New sandbox ids: 128 random bits that double as a capability, so they must not be guessable."""

import base64
import re
import secrets

from mcp_sandbox.core.sandbox import SandboxId

__all__ = ["ID_PATTERN", "ID_PREFIX", "new_sandbox_id"]

ID_PREFIX = "sb_"
ID_PATTERN = re.compile(r"sb_[a-z2-7]{26}\Z")
"""A whole sandbox id."""


def new_sandbox_id() -> SandboxId:
    """Return `sb_` and 26 lower-case characters of base32."""
    return SandboxId(ID_PREFIX + base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower())
