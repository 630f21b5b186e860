"""The real server, to which `mcp-sandbox serve` hands over. Importing it loads the SDK and the services."""

import os
import sys
from typing import Any

import anyio

from mcp_sandbox.app import DEFAULT_PROVIDER, open_services
from mcp_sandbox.cli.event_loop import run_loop
from mcp_sandbox.cli.wording import for_people
from mcp_sandbox.core.capability import Verb
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.service.images import is_path
from mcp_sandbox.service.kept import Kept
from mcp_sandbox.service.lifetimes import Lifetimes
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.services import Services
from mcp_sandbox.settings.limits import WantedLimits
from mcp_sandbox.settings.starting import Start
from mcp_sandbox.tools.server import build_server
from mcp_sandbox.transport.claim import Wire
from mcp_sandbox.transport.preamble import Handover
from mcp_sandbox.transport.stdio import serve_stdio

__all__ = ["serve"]


def serve(
    *,
    project: str,
    provider: str,
    image: str,
    profile: str,
    prefix: str,
    lifetimes: "dict[str, Any]",
    wanted: WantedLimits | None,
    start: Start,
    pool: int,
    allow_apply: bool,
    wire: Wire | None,
    handover: Handover | None,
) -> None:
    """Serve one client until it goes away, and end the process."""

    async def complain(services: Kept[Services]) -> None:
        """Say at once what every tool would answer, for the person who reads the client's log."""
        try:
            sandboxes = (await services.get()).sandboxes
            if image and not is_path(image) and await _lacks(sandboxes, provider or DEFAULT_PROVIDER, image):
                print(f"mcp-sandbox: image {image!r} is not here", file=sys.stderr)
        except SandboxError as error:
            print(f"mcp-sandbox: {for_people(error)}", file=sys.stderr)

    async def serve_client() -> None:
        async with anyio.create_task_group() as tasks:
            kept = Lifetimes(**lifetimes)
            services = Kept(
                tasks,
                lambda: open_services(
                    project=project,
                    provider=provider,
                    image=image,
                    lifetimes=kept,
                    wanted=wanted,
                    start=start,
                    pool=pool,
                    allow_apply=allow_apply,
                ),
            )
            server = build_server(services.get, profile=profile, prefix=prefix)
            tasks.start_soon(complain, services)
            try:
                await serve_stdio(server, wire=wire, handover=handover)
            finally:
                services.release()

    run_loop(serve_client())
    sys.stderr.flush()
    # Everything is closed; a thread that hangs in a system call must not keep the process alive.
    os._exit(0)


async def _lacks(sandboxes: SandboxService, provider: str, image: str) -> bool:
    """Whether a provider that keeps images has none of this name."""
    keeps = (await sandboxes.provider(provider)).capabilities.supports(Verb.IMAGES)
    return keeps and not await sandboxes.contents.has_image(provider, image)
