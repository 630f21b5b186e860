"""A byte stream to a bridge that can be taken away and given back: the carrier upon it notices nothing but the time."""

import struct
from typing import Final

import anyio
from anyio.abc import ByteStream

from mcp_sandbox.guest.wire import Type, encode

__all__ = ["ParkingStream"]

PARKED_S: Final = 5.0


class ParkingStream(ByteStream):
    """Knows nothing of frames but that every `send` has whole ones."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._turn = anyio.Semaphore(1)
        self._parking = False
        self._empty = anyio.Event()
        self._plugged = anyio.Event()
        self._over = False

    @property
    def parked(self) -> bool:
        """Whether there is no stream now."""
        return self._parking

    async def park(self, name: int) -> None:
        """Have the bridge let go of the stream, and wait for `plug` under that name.

        Raises:
            TimeoutError: It did not; the connection is over.
            anyio.BrokenResourceError: It was over before.
        """
        await self._turn.acquire()
        self._empty, self._plugged, self._parking = anyio.Event(), anyio.Event(), True
        try:
            for frame in encode(Type.PARK, 0, struct.pack("<I", name)):
                await self._stream.send(frame)
            with anyio.fail_after(PARKED_S):
                await self._empty.wait()
        except BaseException:
            self.give_up()
            raise
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()

    def plug(self, stream: ByteStream) -> None:
        """Go on with another stream."""
        self._stream = stream
        self._parking = False
        self._plugged.set()
        self._turn.release()

    def give_up(self) -> None:
        """Take it that no other stream will come."""
        self._over = True
        self._parking = False
        self._plugged.set()
        self._turn.release()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what the bridge says next."""
        while True:
            plugged = self._plugged
            try:
                return await self._stream.receive(max_bytes)
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                if not self._parking:
                    if plugged is self._plugged or self._over:
                        raise
                    continue  # it was plugged meanwhile
                plugged = self._plugged
                self._empty.set()
                await plugged.wait()
                if self._over:
                    raise anyio.EndOfStream from None

    async def send(self, item: bytes) -> None:
        """Send whole frames, as soon as there is a stream."""
        async with self._turn:
            if self._over:
                raise anyio.BrokenResourceError
            await self._stream.send(item)

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """End the connection."""
        if self._parking:
            self.give_up()
        await self._stream.aclose()
