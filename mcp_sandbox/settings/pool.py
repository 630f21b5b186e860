"""How many sandboxes are kept ready: `--pool 2` on the command line, or `MCP_SANDBOX_POOL` in a client's settings.

Imports next to nothing: a server reads its options before it answers for the first time.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["find_pool"]

_MOST = 64


def find_pool(option: str | None, environ: "Mapping[str, str]" = os.environ) -> int:
    """Return the number that the option, else the variable says; 0 if neither does.

    Raises:
        ConfigError: It is no number, or too large.
    """
    name, text = ("--pool", option) if option is not None else ("MCP_SANDBOX_POOL", environ.get("MCP_SANDBOX_POOL"))
    if not text:
        return 0
    if not text.isascii() or not text.isdecimal() or int(text) > _MOST:
        from mcp_sandbox.core.errors import ConfigError

        raise ConfigError(
            f"{name}={text!r} cannot be used", why=f"a number from 0 to {_MOST} is expected",
            fix="It says how many sandboxes are kept ready",
        )  # fmt: skip
    return int(text)
