"""Adds images: copies them, or builds them from packages.

What packages bring to be run runs inside a sandbox, so that building one needs no privilege and gives none.
"""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.core.exec import ExecRequest, Exited, StreamName
from mcp_sandbox.core.image import Image, ImageRequest, Recipe
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxSpec
from mcp_sandbox.engines.debootstrap import Debootstrap, checked, find_debootstrap
from mcp_sandbox.engines.essentials import make_places
from mcp_sandbox.engines.image_store import Content, ImageStore, built_by, check_name, look_of

__all__ = ["add_image"]

_CONFIGURE: Final = ("/debootstrap/debootstrap", "--second-stage")
_CONFIGURE_S: Final = 1800.0
_PACK: Final = (
    "tar", "--create", "--one-file-system", "--numeric-owner", "--directory=/", "--exclude=./debootstrap",
    "--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/log/bootstrap.log", ".",
)  # fmt: skip
_ENVIRONMENT: Final = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "container": "lxc"}
"""In a container of this name debootstrap does not insist on making devices."""
_TOLD_BYTES: Final = 500

Create = Callable[[str, SandboxSpec], Awaitable[Sandbox]]
Destroy = Callable[[SandboxId], Awaitable[None]]


async def add_image(images: ImageStore, request: ImageRequest, create: Create, destroy: Destroy) -> Image:
    """Copy or build what is asked for, or find what the same request made before, and name it.

    Args:
        images: Where it goes.
        request: What to add.
        create: Makes a sandbox on a base, in which to build.
        destroy: Removes it.

    Raises:
        InvalidRequestError: The name, the source or the recipe cannot be.
        UnsupportedError: A program that this needs is missing; says which, and how to get it.
        ProviderError: It could not be built.
    """
    check_name(request.name)
    recipe = request.recipe
    if recipe is not None:
        checked(recipe)
        program = await find_debootstrap()
        made_by = built_by(recipe, program.version)
        origin = (
            f"{recipe.distribution}:{recipe.suite}{' with ' if recipe.packages else ''}{', '.join(recipe.packages)}"
        )
        content = None if request.fresh else await to_thread.run_sync(images.made_by, made_by)
        content = content or await _built(images, recipe, program, create, destroy)
    else:
        source = Path(request.source or "")
        await to_thread.run_sync(images.require_foreign, source)
        made_by = await to_thread.run_sync(look_of, source)
        origin = str(source)
        content = None if request.fresh else await to_thread.run_sync(images.made_by, made_by)
        content = content or await to_thread.run_sync(images.add, source)
    named = content
    return await to_thread.run_sync(lambda: images.name(request.name, named, origin=origin, made_by=made_by))


async def _built(images: ImageStore, recipe: Recipe, program: Debootstrap, create: Create, destroy: Destroy) -> Content:
    spec = SandboxSpec(id=SandboxId(f"build-{secrets.token_hex(8)}"))
    async with _scratch(images) as scratch:
        await program.unpack(recipe, scratch / "tree", scratch / "log")
        unpacked = await to_thread.run_sync(images.add, scratch / "tree", make_places)
        try:
            async with await create(unpacked.base, spec) as sandbox:
                with (scratch / "log").open("wb") as log:
                    await _run(sandbox, _CONFIGURE, log.write, "configure the packages")
                with (scratch / "tar").open("wb") as archive:
                    await _run(sandbox, _PACK, archive.write, "pack the system")
        finally:
            with anyio.CancelScope(shield=True):
                await destroy(spec.id)
        return await to_thread.run_sync(images.add, scratch / "tar")


@asynccontextmanager
async def _scratch(images: ImageStore) -> AsyncGenerator[Path]:
    beside = images.beside()
    path = await to_thread.run_sync(beside.__enter__)
    try:
        yield path
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(beside.__exit__, None, None, None)


async def _run(sandbox: Sandbox, argv: tuple[str, ...], take: Callable[[bytes], object], what: str) -> None:
    request = ExecRequest(argv=argv, cwd="/", env=_ENVIRONMENT, timeout_s=_CONFIGURE_S)
    said = b""
    async with await sandbox.exec(request) as execution:
        while not isinstance(event := await execution.receive(), Exited):
            if event.stream is StreamName.STDOUT:
                take(event.data)
            said = (said + event.data)[-_TOLD_BYTES:]
    if event.result.exit_code != 0:
        raise ProviderError(
            f"Cannot {what}", why=said.decode("utf-8", "replace").strip() or f"it ended with {event.result.exit_code}",
            fix="Leave out the package that fails, or report this",
        )  # fmt: skip
