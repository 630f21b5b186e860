"""Snapshots of containers: images that share their layers, committed while every process inside stands still.

`mcp-sandbox/snapshot:<ref>` is one; its labels say of which sandbox it is and what that was made from. One that was
discarded while something stands on it is called `mcp-sandbox/discarded:<ref>` until nothing does any more.
"""

import json
import logging
import os
import secrets
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

import anyio
import anyio.to_thread

from mcp_sandbox.core.errors import NotFoundError, ProviderError, SandboxError, SandboxGoneError, UnsupportedError
from mcp_sandbox.core.files import FileInfo, FileKind, ListRequest, RemoveRequest, StatRequest, WriteRequest
from mcp_sandbox.core.leftovers import Leftover, Remembered
from mcp_sandbox.core.sandbox import WORKSPACE, WorkspaceMode
from mcp_sandbox.engines.carrier import GuestRestarting
from mcp_sandbox.engines.docker_container import LABEL_SANDBOX, LABEL_STATE, ImageFacts
from mcp_sandbox.engines.docker_engine import DockerEngine
from mcp_sandbox.engines.docker_flattening import flatten, has_many_layers
from mcp_sandbox.engines.docker_state import ContainerState
from mcp_sandbox.engines.guest_files import list_tree, remove_path, stat_path, write_file
from mcp_sandbox.engines.stream_carrier import StreamCarrier
from mcp_sandbox.guest.wire import Type
from mcp_sandbox.hostfs.atomic import write_atomically

__all__ = ["Captured", "DockerSnapshots"]

_log = logging.getLogger(__name__)
SNAPSHOTS: Final = "mcp-sandbox/snapshot"
DISCARDED: Final = "mcp-sandbox/discarded"
LABEL_SNAPSHOT: Final = "mcp-sandbox.snapshot"
LABEL_PARENT: Final = "mcp-sandbox.parent"
_THAW_S: Final = 5.0
_PATH_BYTES: Final = 4096
"""Engines take no longer ones (PATH_MAX), and leave them out without a word."""
_DEEP: Final = 1000
"""Levels that the agent looks through at once."""
_MANY: Final = 1_000_000


class Captured(NamedTuple):
    """A snapshot that was taken."""

    ref: str
    size_bytes: int
    paused_s: float


class DockerSnapshots:
    """Of one engine.

    Args:
        engine: Has been opened.
    """

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._client = engine.client
        self._seen: dict[str, bool] = {}
        """Runtimes, and whether the engine sees what is written on them."""

    async def take(self, state: ContainerState, carrier: StreamCarrier) -> Captured:
        """Commit a container while nothing in it runs on.

        Raises:
            UnsupportedError: The engine would not see all of the sandbox's files.
        """
        self.require_captured(state)
        await self._require_seen(state, carrier)
        ref = secrets.token_hex(16)
        labels = {
            LABEL_SNAPSHOT: ref, LABEL_PARENT: state.image_id, LABEL_SANDBOX: state.id,
            LABEL_STATE: self._engine.states.owner,
        }  # fmt: skip
        changes = [f"LABEL {name}={json.dumps(value)}" for name, value in labels.items()]
        began = time.monotonic()
        frozen = await carrier.request(Type.FREEZE, b"")
        try:
            times = await _times(state, carrier)
            made = await self._client.call(
                "No snapshot taken",
                lambda api: api.commit(state.container, SNAPSHOTS, ref, pause=False, changes=changes),
            )
        finally:
            with anyio.move_on_after(_THAW_S, shield=True), suppress(SandboxGoneError, GuestRestarting):
                await carrier.request(Type.THAW, b"")
        await anyio.to_thread.run_sync(write_atomically, self._engine.states.times(ref), times)
        stood_still = any(frozen.payload[:4])
        paused_s = time.monotonic() - began if stood_still else 0.0
        size = await self.size(str(made["Id"]))
        if await has_many_layers(self._engine, _name(ref)):
            await self._flatten(ref)
        return Captured(ref, size, paused_s)

    async def _flatten(self, ref: str) -> None:
        try:
            await flatten(self._engine, SNAPSHOTS, ref, DISCARDED)
        except SandboxError as error:  # there is still some room
            _log.warning("snapshot %s: %s", ref, error)
        with anyio.CancelScope(shield=True):
            await self.sweep()

    def require_captured(self, state: ContainerState) -> None:
        """Return if snapshots of a sandbox hold its workspace.

        Raises:
            UnsupportedError: They do not.
        """
        if state.workspace == WorkspaceMode.MOUNT.value:
            raise UnsupportedError(
                "No snapshot taken or restored", why="the workspace is the host's own directory, which none holds",
                fix="Use the project's version control, or serve with a copy of the project (--workspace overlay)",
            )  # fmt: skip

    async def _require_seen(self, state: ContainerState, carrier: StreamCarrier) -> None:
        """Look whether the engine sees what is written inside: gVisor keeps it to itself unless told otherwise."""
        seen = self._seen.get(state.runtime)
        if seen is None:
            path = f"/var/tmp/.mcp-sandbox-{secrets.token_hex(8)}"  # noqa: S108 (inside a sandbox)
            await write_file(carrier, WriteRequest(path=path), b"seen")
            try:
                await self._client.call("No file", lambda api: b"".join(api.get_archive(state.container, path)[0]))
                seen = True
            except NotFoundError:
                seen = False
            finally:
                with anyio.CancelScope(shield=True), suppress(OSError, SandboxError, GuestRestarting):
                    await remove_path(carrier, RemoveRequest(path=path))
            self._seen[state.runtime] = seen
        if not seen:
            raise UnsupportedError(
                "No snapshot taken", why=f"runtime {state.runtime!r} keeps what is written inside to itself",
                fix="Add --overlay2=none to the runtimeArgs of this runtime in the engine's daemon.json",
            )  # fmt: skip

    async def size(self, image: str) -> int:
        """Return the bytes of the uppermost layer."""
        history = await self._client.call("No snapshot", lambda api: api.history(image))
        return int(history[0].get("Size") or 0) if history else 0

    async def facts(self, ref: str) -> ImageFacts:
        """Return the image of a snapshot.

        Raises:
            NotFoundError: It is not there any more, or is no snapshot of ours.
        """
        await self.inspect(ref)
        return await self._engine.puller.facts(_name(ref), fetch=False)

    async def times(self, ref: str) -> bytes:
        """Return the times of the files of a snapshot."""
        try:
            return await anyio.Path(self._engine.states.times(ref)).read_bytes()
        except FileNotFoundError:
            return b""

    async def inspect(self, ref: str) -> "dict[str, Any]":
        """Return what the engine says about a snapshot; raises as `facts`."""
        gone = NotFoundError(
            "Snapshot not used", why="the container engine does not have its image any more", fix="Choose another one"
        )
        if not ref.isalnum():
            raise gone
        try:
            found = await self._client.call("No snapshot", lambda api: api.inspect_image(_name(ref)))
        except NotFoundError:
            raise gone from None
        config: dict[str, Any] = found.get("Config") or {}
        labels: dict[str, str] = config.get("Labels") or {}
        if labels.get(LABEL_SNAPSHOT) != ref:
            raise gone
        return found

    async def discard(self, ref: str) -> None:
        """Forget a snapshot; what stands on it keeps its layers. No-op if it is gone."""
        try:
            image = str((await self.inspect(ref))["Id"])
        except NotFoundError:
            return
        self._engine.states.times(ref).unlink(missing_ok=True)
        await self._client.call("No snapshot", lambda api: api.tag(image, DISCARDED, ref, force=True))
        with suppress(NotFoundError):
            await self._client.call("Snapshot not deleted", lambda api: api.remove_image(_name(ref)))
        await self._remove_discarded(f"{DISCARDED}:{ref}")

    async def sweep(self) -> None:
        """Remove what was discarded and nothing needs any more."""
        for name in await self._tags(DISCARDED):
            await self._remove_discarded(name)

    async def _remove_discarded(self, name: str) -> None:
        with suppress(NotFoundError, ProviderError, SandboxError):  # something still stands on it
            found = await self._client.call("No image", lambda api: api.inspect_image(name))
            if str(found["Id"]) in await anyio.to_thread.run_sync(self._engine.states.start_images):
                return  # a sandbox that was restored since is still compared with it
            await self._client.call("Snapshot not deleted", lambda api: api.remove_image(name))

    async def collect(
        self, remembered: Remembered, *, kept_s: float, now: float, dry_run: bool = False
    ) -> "list[Leftover]":
        """Discard snapshots that no record names; arguments are those of `Provider.collect`."""
        gone: list[Leftover] = []
        for ref, taken_at in (await self._refs()).items():
            if now - taken_at < kept_s or await anyio.to_thread.run_sync(remembered.snapshot, ref):
                continue
            gone.append(Leftover(kind="snapshot", name=ref, why="no record names it"))
            if not dry_run:
                await self.discard(ref)
        for image, made_at in (await self._nameless()).items():
            if now - made_at >= kept_s:
                gone.append(Leftover(kind="file", name=image, why="the engine ended before it had a name"))
                if not dry_run:
                    await self._remove_discarded(image)
        if not dry_run:
            await self.sweep()
        return gone

    async def _nameless(self) -> "dict[str, float]":
        """Return images of this state directory that nothing names or stands on, and when each was made."""
        chosen = {"dangling": True, "label": [f"{LABEL_STATE}={self._engine.states.owner}"]}
        rows = await self._client.call("No list of images", lambda api: api.images(filters=chosen))
        return {str(row["Id"]): float(row.get("Created") or 0) for row in rows}

    async def _refs(self) -> "dict[str, float]":
        """Return the snapshots of this state directory, and when each was taken, in seconds since 1970."""
        rows = await self._client.call("No list of snapshots", lambda api: api.images(SNAPSHOTS))
        found: dict[str, float] = {}
        for row in rows:
            labels: dict[str, str] = row.get("Labels") or {}
            if labels.get(LABEL_STATE) == self._engine.states.owner and LABEL_SNAPSHOT in labels:
                found[labels[LABEL_SNAPSHOT]] = float(row.get("Created") or 0)
        return found

    async def _tags(self, repository: str) -> "list[str]":
        rows = await self._client.call("No list of images", lambda api: api.images(repository))
        return [tag for row in rows for tag in row.get("RepoTags") or ()]


async def _times(state: ContainerState, carrier: StreamCarrier) -> bytes:
    """Return when everything that commands can write to was last changed, where that is no whole second.

    Raises:
        UnsupportedError: The engine would lose some of it.
    """
    found: list[bytes] = []
    unread = [WORKSPACE, state.home, "/tmp", "/var/tmp"]  # noqa: S108 (inside a sandbox)
    while unread:
        root = unread.pop()
        with suppress(OSError):
            found.append(_time(await stat_path(carrier, StatRequest(path=root, follow=False))))
            listing = await list_tree(carrier, ListRequest(path=root, depth=_DEEP, limit=_MANY))
            for entry in listing.entries:
                if len(os.fsencode(entry.path)) >= _PATH_BYTES:
                    raise UnsupportedError(
                        "No snapshot taken",
                        why=f"a path below {root[:100]!r} is longer than the container engine can keep",
                        fix="Remove what lies so deep, then take the snapshot again",
                    )
                found.append(_time(entry))
                if entry.kind is FileKind.DIRECTORY and entry.path.count("/") - root.count("/") == _DEEP:
                    unread.append(entry.path)
    return b"".join(found)


def _time(entry: FileInfo) -> bytes:
    seconds, nanoseconds = divmod(entry.modified_ns, 1_000_000_000)
    fifo = entry.mode if entry.kind is FileKind.FIFO else 0
    return b"%d %d %d %s\0" % (seconds, nanoseconds, fifo, os.fsencode(entry.path)) if nanoseconds or fifo else b""


def _name(ref: str) -> str:
    return f"{SNAPSHOTS}:{ref}"
