"""Run by the interpreter that has the Agents SDK, and by no other: reads words, does that, answers milliseconds.

It imports nothing of ours, and the SDK by name only, since it is not there where our code is checked.
"""

import asyncio
import importlib
import io
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

__all__: list[str] = []

_DATA = (("0123456789abcdef" * 64)[:-1] + "\n").encode() * 1024
_FILES = 1000


class _Driver:
    """One live sandbox of the SDK, and those it makes besides."""

    def __init__(self, place: Path) -> None:
        self._sdk = importlib.import_module("agents.sandbox")
        local = importlib.import_module("agents.sandbox.sandboxes.unix_local")
        self._snapshots = place / "snapshots"
        self._client: Any = local.UnixLocalSandboxClient()
        self._session: Any = None

    async def _new(self) -> Any:
        session = await self._client.create(
            manifest=self._sdk.Manifest(),
            snapshot=self._sdk.LocalSnapshotSpec(base_path=self._snapshots),
            options=None,
        )
        await session.start()
        return session

    async def do(self, word: str) -> float:
        """Do one thing; return milliseconds."""
        if word == "SNAPSHOT":
            for number in range(_FILES):
                await asyncio.to_thread(self._root.joinpath(f"f{number}").write_bytes, _DATA[:1001])
        if word == "RESUME":
            text = self._client.serialize_session_state(self._session.state)
            shutil.rmtree(self._root)
            state = self._client.deserialize_session_state(text)
        else:
            state = None
        made: Any = None
        began = time.perf_counter()
        if word == "BEGIN":
            self._session = await self._new()
        elif word == "CREATE":
            made = await self._new()
            await self._true(made)
        elif word == "EXEC":
            await self._true(self._session)
        elif word == "FILE":
            await self._session.write(Path("file"), io.BytesIO(_DATA))
            with await self._session.read(Path("file")) as file:
                assert file.read() == _DATA
        elif word == "SNAPSHOT":
            await self._session.stop()
        else:
            self._session = await self._client.resume(state)
            await self._session.start()
            await self._true(self._session)
        taken = (time.perf_counter() - began) * 1000
        if word == "RESUME":
            assert sum(1 for _ in self._root.glob("f*")) >= _FILES
        if made is not None:
            shutil.rmtree(made.state.manifest.root)
        return taken

    @property
    def _root(self) -> Path:
        return Path(self._session.state.manifest.root)

    async def _true(self, session: Any) -> None:
        result = await session.exec("true")
        assert result.exit_code == 0


async def _main() -> None:
    driver = _Driver(Path(sys.argv[1]))
    ms = 0.0
    while True:
        sys.stdout.write(json.dumps({"ms": ms}) + "\n")
        sys.stdout.flush()
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line:
            return
        ms = await driver.do(line.strip())


if __name__ == "__main__":
    asyncio.run(_main())
