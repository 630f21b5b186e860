"""What sandboxes stand on: a generated root, and the host's /usr with their ids or with mirrored directories."""

import asyncio
import errno
import os
import secrets
from pathlib import Path
from typing import Final

import anyio

from mcp_sandbox.engines.diagnosis import explain
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.engines.launcher import Launcher
from mcp_sandbox.engines.layer_store import BEING_MADE, LayerStore
from mcp_sandbox.engines.package_database import copy_package_database
from mcp_sandbox.engines.skeleton import base_fingerprint, fill_root, fill_usr
from mcp_sandbox.hostfs.atomic import alocked

__all__ = ["Bases"]

IDMAPPED_USR: Final = "idmapped/usr"
"""Where the zygote shows the host's /usr with the sandbox's ids."""


class Bases:
    """Builds bases and finds them again; each is a directory of the store, never changed."""

    def __init__(self, store: LayerStore, launcher: Launcher, identity: Identity) -> None:
        self._store = store
        self._launcher = launcher
        self._identity = identity
        self._lock = anyio.Lock()
        self.built: str | None = None
        """The one that new sandboxes got last."""
        self.usr = "/usr"
        """The host's /usr, as the launcher's store knows it."""

    async def open(self) -> None:
        """Show the host's /usr with the ids of sandboxes, where they have a range and the file system can."""
        if not self._identity.is_range:
            return
        target = self._store.root / IDMAPPED_USR
        target.mkdir(parents=True, exist_ok=True)
        try:
            await self._launcher.mount_idmapped("/usr", IDMAPPED_USR)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                raise explain(error, self._store.root) from error
            return  # a file system without idmapped mounts: mirror its directories instead
        self.usr = IDMAPPED_USR

    @property
    def _is_mirrored(self) -> bool:
        return self.usr != IDMAPPED_USR

    def name(self) -> str:
        """Return what the base of new sandboxes is called, built or not: another one when the host's /usr changed."""
        return base_fingerprint(self._identity, mirrored=self._is_mirrored)

    async def current(self) -> str:
        """Return the base for new sandboxes, built on first use and when the host's /usr changed."""
        name = self.name()
        if name == self.built:
            return name
        async with self._lock, alocked(self._store.root / "base.lock", wait_s=120):
            if not (self._store.root / "base" / name).is_dir():
                await self._build(name, mirrored=self._is_mirrored)
            self.built = name
        return name

    async def _build(self, name: str, *, mirrored: bool) -> None:
        relative = f"trash/{BEING_MADE}{secrets.token_hex(4)}"
        fresh = self._store.root / relative
        (fresh / "usr").mkdir(parents=True)
        (fresh / "root").mkdir()
        if mirrored:
            await self._launcher.run("skeleton", "/usr", f"{relative}/usr")
        await asyncio.gather(
            asyncio.to_thread(fill_root, fresh / "root"),
            asyncio.to_thread(copy_package_database, fresh / "root"),
            asyncio.to_thread(fill_usr, fresh / "usr"),
        )
        if self._identity.is_range:
            await asyncio.to_thread(_give, fresh, self._identity)
        fresh.rename(self._store.root / "base" / name)


def _give(tree: Path, identity: Identity) -> None:
    for path in (tree, *tree.rglob("*")):
        os.lchown(path, identity.start, identity.gid)
