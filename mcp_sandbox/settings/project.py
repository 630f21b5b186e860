"""Which project a server belongs to. Clients start servers in `/` or in the home directory, so that is no sign.

Imports next to nothing: it runs before the first byte is read.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["find_project"]

_OWN = "MCP_SANDBOX_PROJECT"
_CLIENTS = ("CLAUDE_PROJECT_DIR",)
_SHARED = frozenset(
    ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/opt", "/proc", "/run", "/sbin", "/srv", "/sys", "/usr", "/usr/bin")
) | {"/tmp", "/var", "/var/tmp", "/private/tmp", "/Applications"}  # noqa: S108 (never written to)
"""Directories that a client may happen to start in, and that are nobody's project."""


def find_project(given: str | None = None, environ: "Mapping[str, str]" = os.environ) -> str:
    """Return the real path of the project, or an empty string where there is none.

    What somebody named on purpose (`given`, `$MCP_SANDBOX_PROJECT`) must exist. What was only found, in a client's
    variable or as the current directory, counts unless it is the home directory or holds it, or belongs to the system:
    a sandbox would show every key in there.

    Raises:
        ConfigError: What was named is not a directory, or is the whole file system.
    """
    for source, named in (("--project", given), (_OWN, environ.get(_OWN))):
        if named:
            return _checked(source, named)
    for variable in _CLIENTS:
        if found := environ.get(variable):
            return _found(found, environ)
    try:
        here = os.getcwd()  # noqa: PTH109 (pathlib is not loaded yet)
    except OSError:  # it was removed
        return ""
    return _found(here, environ)


def _checked(source: str, named: str) -> str:
    path = os.path.realpath(os.path.expanduser(named))  # noqa: PTH111
    if path == "/" or not os.path.isdir(path):  # noqa: PTH112
        from mcp_sandbox.core.errors import ConfigError

        raise ConfigError(
            f"No project {named!r}",
            why=f"{source} must name a directory, and {'not the whole file system' if path == '/' else 'this is none'}",
            fix=f"Correct {source}, or leave it out to work without a project",
        )
    return path


def _found(directory: str, environ: "Mapping[str, str]") -> str:
    if not directory.startswith("/"):
        return ""
    path = os.path.realpath(directory)
    homes = {os.path.realpath(home) for home in (environ.get("HOME", ""), os.path.expanduser("~")) if home[:1] == "/"}  # noqa: PTH111
    if path in _SHARED or not os.path.isdir(path):  # noqa: PTH112
        return ""
    holds_a_home = any(f"{home}/".startswith(f"{path.rstrip('/')}/") for home in homes)
    return "" if holds_a_home else path
