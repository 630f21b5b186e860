"""The engine's images as what sandboxes start from, and new ones from a root file system or from packages.

An image that came from here says so by a label; others are listed and used, and never changed, renamed or removed.
What packages bring to be run runs in a container without a network.
"""

import hashlib
import json
import re
import secrets
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import InvalidRequestError, NotFoundError, ProviderError, SandboxError
from mcp_sandbox.core.image import Image, ImageRequest, Recipe
from mcp_sandbox.engines.debootstrap import checked, find_debootstrap
from mcp_sandbox.engines.docker_client import DockerClient
from mcp_sandbox.engines.docker_container import LABEL_SANDBOX
from mcp_sandbox.engines.image_store import built_by, look_of
from mcp_sandbox.hostfs.archives import unpacked
from mcp_sandbox.hostfs.docker_archives import find_docker_archive
from mcp_sandbox.hostfs.tree_writer import Bounds

__all__ = ["DockerImages"]

OWN: Final = "mcp-sandbox/"
"""Begins the names of images that are nobody's to see: made ready, and snapshots."""
LABEL_ORIGIN: Final = "mcp-sandbox.origin"
LABEL_MADE_BY: Final = "mcp-sandbox.made-by"
_REFERENCE: Final = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")
_CONFIGURE: Final = "/debootstrap/debootstrap --second-stage && rm -rf /debootstrap /var/cache/apt/archives/*.deb"
_ENVIRONMENT: Final = (
    "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "container=lxc", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
)  # fmt: skip
"""In a container of this name debootstrap does not insist on making devices."""
_CONFIGURE_S: Final = 1800.0
_LOOK_S: Final = 0.5
_PIECE_BYTES: Final = 1 << 20
_TOLD_LINES: Final = 20


class DockerImages:
    """Of one engine.

    Args:
        client: How to reach it.
        scratch: A directory for what is made on the way.
    """

    def __init__(self, client: DockerClient, scratch: Path) -> None:
        self._client = client
        self._scratch = scratch

    async def list(self) -> "list[Image]":
        """Return what sandboxes can start from: every image with a name."""
        return sorted((_image(name, row) for name, row in await self._named()), key=lambda image: image.name)

    async def _named(self) -> "list[tuple[str, Mapping[str, Any]]]":
        rows = await self._client.call("No list of images", lambda api: api.images(""))
        return [
            (name, row)
            for row in rows
            for name in map(_short, row.get("RepoTags") or ())
            if name != "<none>:<none>" and not name.removeprefix("localhost/").startswith(OWN)
        ]

    async def add(self, request: ImageRequest) -> Image:
        """Make an image, or find what the same request made before, and name it.

        Raises:
            InvalidRequestError: The name, the source or the recipe cannot be.
            UnsupportedError: A program that this needs is missing; says which, and how to get it.
            ProviderError: It could not be made.
        """
        name = await self._free(request.name)
        if request.recipe is not None:
            program = await find_debootstrap()
            recipe = checked(request.recipe)
            made_by = _digest(built_by(recipe, program.version))
            packages = f" with {', '.join(recipe.packages)}" if recipe.packages else ""
            labels = _labels(f"{recipe.distribution}:{recipe.suite}{packages}", made_by)
        else:
            source = Path(request.source or "")
            made_by = _digest(await to_thread.run_sync(look_of, source))
            labels = _labels(str(source), made_by)
        if not request.fresh and (known := await self._made_by(made_by)):
            repository, _, tag = name.partition(":")
            await self._client.call(f"No image {name!r}", lambda api: api.tag(known, repository, tag, force=True))
        elif request.recipe is not None:
            await self._build(request.recipe, name, labels)
        else:
            await self._copy(Path(request.source or ""), name, labels)
        return next(image for image in await self.list() if image.name == name)

    async def remove(self, name: str) -> None:
        """Take a name away that was given here.

        Raises:
            InvalidRequestError: There is no such image, or it is not from here.
        """
        found = await self._inspect(_full(name))
        if found is None:
            raise InvalidRequestError(
                f"No image {name!r}", why="the engine has none of this name", fix="`mcp-sandbox image list` shows them"
            )
        if LABEL_ORIGIN not in _labels_of(found):
            raise _not_ours(name, "not removed")
        await self._client.call(f"Image {name!r} not removed", lambda api: api.remove_image(_full(name)))

    async def _free(self, name: str) -> str:
        """Return a name with its tag, unless it is somebody else's."""
        if not _REFERENCE.fullmatch(name) or name.startswith(OWN) or len(name) > 200:
            raise InvalidRequestError(
                f"No image can be called {name[:80]!r}",
                why="container engines take lower-case letters and digits with `. _ - /` between, `:` and a tag",
                fix="Choose another name with --name, for example `dev`",
            )
        full = _full(name)
        found = await self._inspect(full)
        if found is not None and LABEL_ORIGIN not in _labels_of(found):
            raise _not_ours(name, "not replaced")
        return full

    async def _inspect(self, name: str) -> "Mapping[str, Any] | None":
        try:
            return await self._client.call(f"No image {name!r}", lambda api: api.inspect_image(name))
        except NotFoundError:
            return None

    async def _made_by(self, made_by: str) -> str:
        """Return the id of an image; what was made of it has its labels, too, and other names."""
        rows = await self._named()
        return next((str(row["Id"]) for _, row in rows if _row_labels(row).get(LABEL_MADE_BY) == made_by), "")

    async def _copy(self, source: Path, name: str, labels: Mapping[str, str]) -> None:
        async with self._scratch_directory() as scratch:
            archive = await to_thread.run_sync(_as_archive, source, scratch)
            await self._import(archive, name, labels)

    async def _build(self, recipe: Recipe, name: str, labels: Mapping[str, str]) -> None:
        program = await find_debootstrap()
        async with self._scratch_directory() as scratch:
            await program.unpack(recipe, scratch / "tree", scratch / "log")
            await to_thread.run_sync(_pack, scratch / "tree", scratch / "tar")
            half = f"{OWN}half:{secrets.token_hex(8)}"
            await self._import(scratch / "tar", half, {})
            try:
                container = await self._configured(half)
                try:
                    await self._export(container, scratch / "whole")
                finally:
                    await self._gone(container)
            finally:
                with anyio.CancelScope(shield=True), suppress(SandboxError):
                    await self._client.call("No image", lambda api: api.remove_image(half))
            await self._import(scratch / "whole", name, labels)

    async def _configured(self, image: str) -> str:
        """Have the packages configured in a container of their own; return it when it has ended."""
        config = {
            "Image": image, "Cmd": ["/bin/sh", "-c", _CONFIGURE], "Env": list(_ENVIRONMENT),
            "Labels": {LABEL_SANDBOX: ""}, "HostConfig": {"NetworkMode": "none"},
        }  # fmt: skip
        what = "Cannot configure the packages"
        made = await self._client.call(what, lambda api: api.create_container_from_config(config, f"mcp-{image[-16:]}"))
        container: str = made["Id"]
        try:
            await self._client.call(what, lambda api: api.start(container))
            with anyio.fail_after(_CONFIGURE_S):
                while (state := await self._state(container))["Running"]:  # noqa: ASYNC110 (the engine is asked)
                    await anyio.sleep(_LOOK_S)
            if state["ExitCode"] != 0:
                said = await self._client.call(what, lambda api: api.logs(container, tail=_TOLD_LINES))
                raise ProviderError(
                    what, why=said.decode("utf-8", "replace").strip()[-500:] or f"it ended with {state['ExitCode']}",
                    fix="Leave out the package that fails, or report this",
                )  # fmt: skip
        except TimeoutError:
            await self._gone(container)
            raise ProviderError(
                what, why=f"that took longer than {_CONFIGURE_S:g} s", fix="Leave out packages, or try again"
            ) from None
        except BaseException:
            await self._gone(container)
            raise
        return container

    async def _state(self, container: str) -> "Mapping[str, Any]":
        found = await self._client.call("No container", lambda api: api.inspect_container(container))
        return found["State"]

    async def _gone(self, container: str) -> None:
        with anyio.CancelScope(shield=True), suppress(SandboxError):
            await self._client.call("No container", lambda api: api.remove_container(container, v=True, force=True))

    async def _export(self, container: str, target: Path) -> None:
        def write(pieces: Iterator[bytes]) -> None:
            with target.open("wb") as file:
                for piece in pieces:
                    file.write(piece)

        await self._client.call("Cannot pack the system", lambda api: write(api.export(container)))

    async def _import(self, archive: Path, name: str, labels: Mapping[str, str]) -> None:
        changes = [f"LABEL {label}={json.dumps(value)}" for label, value in labels.items()]
        changes.append('CMD ["/bin/sh"]')

        def pieces(file: IO[bytes]) -> Iterator[bytes]:
            return iter(lambda: file.read(_PIECE_BYTES), b"")

        with archive.open("rb") as file:
            await self._client.call(
                f"No image {name!r}",
                lambda api: api.import_image_from_data(pieces(file), repository=name, changes=changes),
            )

    @asynccontextmanager
    async def _scratch_directory(self) -> AsyncGenerator[Path]:
        made = tempfile.TemporaryDirectory(prefix="image-", dir=self._scratch)
        try:
            yield Path(made.name)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(made.cleanup)


def _pack(source: Path, target: Path) -> None:
    """Pack a root file system as a tar archive, without devices and what cannot be read. Blocks."""
    own = source.stat().st_uid

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.isdev() and not member.isfifo():
            return None
        if own != 0 and member.uid == own:  # whoever unpacked it was not root, and root is meant
            member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(source, arcname=".", filter=kept)


def _as_archive(source: Path, scratch: Path) -> Path:
    """Return an archive with the files of a directory, or of an archive that holds a system. Blocks."""
    if source.is_dir():
        _pack(source, scratch / "tar")
        return scratch / "tar"
    with source.open("rb") as packed, unpacked(packed, scratch, Bounds()) as file:
        if find_docker_archive(file) is not None:
            raise InvalidRequestError(
                f"No image from {source.name!r}", why="it is an archive of images, as `docker save` writes it",
                fix=f"Load it: docker load -i {source.name}; sandboxes can start from it by its own name then",
            )  # fmt: skip
    return source


def _labels(origin: str, made_by: str) -> "dict[str, str]":
    return {LABEL_ORIGIN: origin, LABEL_MADE_BY: made_by}


def _labels_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    config: Mapping[str, Any] = found.get("Config") or {}
    return config.get("Labels") or {}


def _row_labels(row: Mapping[str, Any]) -> Mapping[str, str]:
    return row.get("Labels") or {}


def _digest(made_by: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()[:32]


def _short(name: str) -> str:
    """Return a name as Docker shows it; Podman says in full what both mean by it."""
    return name.removeprefix("docker.io/").removeprefix("library/")


def _full(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _image(name: str, row: Mapping[str, Any]) -> Image:
    labels = _row_labels(row)
    return Image(
        name=name, created_at=datetime.fromtimestamp(row["Created"], UTC).isoformat(timespec="milliseconds"),
        size_bytes=row["Size"], origin=labels.get(LABEL_ORIGIN, "the container engine"), content=row["Id"],
    )  # fmt: skip


def _not_ours(name: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Image {name!r} {what}", why="it did not come from `mcp-sandbox image`",
        fix=f"Choose another name, or use the engine's own tools (docker rmi {name})",
    )  # fmt: skip
