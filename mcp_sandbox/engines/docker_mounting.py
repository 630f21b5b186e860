"""A project of the host as the workspace itself: whose it is, and whether it is really there."""

import os
from pathlib import Path
from typing import NamedTuple

from mcp_sandbox.core.errors import ProviderError, UnsupportedError
from mcp_sandbox.core.files import ListRequest
from mcp_sandbox.core.sandbox import WORKSPACE
from mcp_sandbox.engines.carrier import GuestCarrier
from mcp_sandbox.engines.docker_endpoint import Endpoint
from mcp_sandbox.engines.docker_facts import EngineFacts
from mcp_sandbox.engines.guest_files import list_tree

__all__ = ["Owner", "owner_of", "require_mounted"]

_OTHERWISE = "Use workspace mode 'overlay', which leaves the host's files as they are"
_NAMES_MAX = 1000


class Owner(NamedTuple):
    """Whose a project is."""

    uid: int
    gid: int


def owner_of(source: str, endpoint: Endpoint, facts: EngineFacts) -> Owner:
    """Return who commands must be so that no file on the host is anybody else's. Blocks.

    Raises:
        UnsupportedError: They cannot be that user here.
    """
    what = "Workspace mode 'mount' refused"
    if not endpoint.is_here:
        raise UnsupportedError(what, why="the container engine is on another machine", fix=_OTHERWISE)
    found = Path(source).stat()
    if facts.rootless and not facts.podman:
        why = "in rootless Docker the project's owner would be root inside, and no sandbox runs as root"
        raise UnsupportedError(what, why=why, fix=_OTHERWISE)
    if facts.rootless and found.st_uid != os.getuid():
        why = "the project belongs to another user, who does not exist inside a rootless engine"
        raise UnsupportedError(what, why=why, fix=_OTHERWISE)
    if facts.user_namespace and not facts.rootless:
        why = "the engine maps users (userns-remap), so nobody inside is the project's owner"
        raise UnsupportedError(what, why=why, fix=_OTHERWISE)
    if found.st_uid == 0:
        why = "the project belongs to root, and no sandbox runs as root"
        raise UnsupportedError(what, why=why, fix=f"Give it to a user (chown -R). Or: {_OTHERWISE.lower()}")
    return Owner(found.st_uid, found.st_gid or found.st_uid)


async def require_mounted(carrier: GuestCarrier, names: "set[str]") -> None:
    """Return if the workspace holds what the project does: an engine in a virtual machine may see another directory.

    Raises:
        ProviderError: It does not.
    """
    listing = await list_tree(carrier, ListRequest(path=WORKSPACE, limit=_NAMES_MAX))
    inside = {entry.path.rsplit("/", 1)[-1] for entry in listing.entries}
    if not listing.truncated and inside != names:
        raise ProviderError(
            "The project is not in the sandbox",
            why="the container engine mounted another directory; it runs in a virtual machine that does not share it",
            fix=f"Share the project's directory with the engine's machine. Or: {_OTHERWISE.lower()}",
        )
