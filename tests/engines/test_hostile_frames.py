"""Agents and bridges that are told nonsense: they refuse or hang up, and serve the next connection."""

import contextlib
import random
import struct
import time
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest
from command_record import run, shell
from compiled import compile_agent
from guest_world import NamespacedGuest, namespaces_work
from raw_peer import RawPeer, frame, message, records

from mcp_sandbox.guest.wire import FRAME_MAX, HEAD, Type, exec_payload, fields, open_payload, strings

__all__: list[str] = []

FUZZ_S = 1.0
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


@pytest.fixture(scope="module")
def sanitized() -> bytes | None:
    """The agent with the compiler's checks built in."""
    return compile_agent(*SANITIZERS)


@pytest.fixture(params=["shipped", "sanitized"])
def target(request: pytest.FixtureRequest) -> Iterator[NamespacedGuest]:
    """An agent that must survive."""
    if reason := namespaces_work():
        pytest.skip(reason)
    program: bytes | None = None
    if request.param == "sanitized":
        program = request.getfixturevalue("sanitized")
        if program is None:
            pytest.skip("no compiler with sanitizers here")
    with NamespacedGuest("stream", program=program, grace_ms=60_000) as guest:
        yield guest


async def still_serves(target: NamespacedGuest) -> None:
    """Check that a new connection works, and that no sanitizer found anything."""
    assert target.findings() == ""
    assert target.init is not None
    assert target.init.poll() is None
    async with target.connected() as carrier:
        with anyio.fail_after(20):
            assert (await shell(carrier, "echo fine")).text() == b"fine\n"
            await shell(carrier, "kill -9 -1")
    assert target.findings() == ""


async def revived(target: NamespacedGuest) -> None:
    """Start the agent again if it was told to end: out of step, bytes may well spell SHUTDOWN."""
    with anyio.fail_after(10):
        while True:
            assert target.init is not None
            if target.init.poll() is not None:
                assert target.init.returncode == 0
                target.start()
            gone = (FileNotFoundError, ConnectionRefusedError, ConnectionResetError)
            with contextlib.suppress(*gone), RawPeer(target.connect_now()) as peer:
                if peer.receive() is not None:  # one that is about to end takes connections, and greets nobody
                    return
            await anyio.sleep(0.01)


WRONG_DATAGRAMS = {
    "empty head": b"\0" * 5,
    "longer than it says": HEAD.pack(3, 1, Type.PING, 0, 0) + b"abcd",
    "shorter than it says": HEAD.pack(300, 1, Type.PING, 0, 0) + b"abcd",
    "larger than a frame": HEAD.pack(FRAME_MAX + 1, 1, Type.PING, 0, 0) + bytes(FRAME_MAX + 1),
    "length of all ones": HEAD.pack(0xFFFFFFFF, 1, Type.PING, 0, 0),
}


@pytest.mark.parametrize("name", WRONG_DATAGRAMS)
async def test_an_agent_hangs_up_on_what_is_no_frame(target: NamespacedGuest, name: str) -> None:
    with RawPeer(await target.socket()) as peer:
        assert peer.receive() is not None
        peer.send(WRONG_DATAGRAMS[name])
        assert peer.receive() is None
    await still_serves(target)


async def test_an_agent_hangs_up_on_a_message_without_end(target: NamespacedGuest) -> None:
    with RawPeer(await target.socket()) as peer:
        taken = 0
        while peer.send(frame(Type.STAT, 1, bytes(FRAME_MAX), flags=1)):
            taken += 1
            assert taken < 200
        assert taken >= 63
    await still_serves(target)


WRONG_REQUESTS = {
    "an unknown type": (99, b""),
    "an answer": (Type.OK, b""),
    "no payload": (Type.EXEC, b""),
    "a count beyond the end": (Type.EXEC, fields(0, 0, "/") + struct.pack("<I", 0xFFFFFFFF)),
    "no argument": (Type.EXEC, exec_payload(0, "/", [], [])),
    "a string without end": (Type.STAT, fields(1) + b"/area"),
    "no descriptors": (Type.EXEC, exec_payload(0, "/", ["true"], [])),
    "a relative path": (Type.OPEN, open_payload(0, 0, "area")),
    "an empty path": (Type.MKDIR, fields(0, 0o755, "")),
    "a signal that is none": (Type.SIGNAL, fields(1, 65, 1)),
    "a name that leads elsewhere": (Type.COMMIT, fields(0, 0, "/area/a", "../b")),
    "a tree nowhere": (Type.PACK, fields(0, 1, 1, "etc") + strings(())),
    "a port that is none": (Type.LISTEN, fields(65536, 0)),
    "the root itself": (Type.REMOVE, fields(1, "/")),
    "the directory above": (Type.REMOVE, fields(1, "/area/..")),
}


async def test_an_agent_refuses_requests_that_make_no_sense(target: NamespacedGuest) -> None:
    with RawPeer(await target.socket()) as peer:
        peer.receive()
        for name, (kind, payload) in WRONG_REQUESTS.items():
            peer.send(frame(kind, 7, payload), pipes=int(kind == Type.PACK))
            answer = peer.receive()
            assert answer is not None, name
            assert (answer.type, answer.id) == (Type.ERROR, 7), name
        peer.send(frame(Type.PING, 8, b""))
        answer = peer.receive()
        assert answer is not None
        assert (answer.type, answer.id) == (Type.OK, 8)
    await still_serves(target)


@pytest.mark.parametrize("seed", [1, 2])
async def test_an_agent_survives_thousands_of_nearly_right_messages(target: NamespacedGuest, seed: int) -> None:
    random_ = random.Random(seed)
    end, count = time.monotonic() + FUZZ_S, 0
    while time.monotonic() < end:
        with RawPeer(await target.socket()) as peer:
            for _ in range(random_.randrange(1, 300)):
                content = records(random_) if random_.randrange(3) == 0 else b""
                if not peer.send(message(random_), random_.choice((0, 0, 1, 2, 3, 4, 6)), content):
                    break
                count += 1
                if random_.randrange(8) == 0:
                    peer.drain()
        await anyio.lowlevel.checkpoint()
    assert count > 50
    await still_serves(target)


@pytest.mark.parametrize("seed", [1, 2])
async def test_unpacking_survives_thousands_of_nearly_right_trees(target: NamespacedGuest, seed: int) -> None:
    random_ = random.Random(seed)
    end, count = time.monotonic() + FUZZ_S, 0
    with RawPeer(await target.socket()) as peer:
        peer.receive()
        while time.monotonic() < end:
            assert peer.send(frame(Type.UNPACK, 1, fields("/area")), 1, records(random_))
            answer = peer.receive()
            assert answer is not None
            assert answer.type in (Type.OK, Type.ERROR)
            count += 1
    assert count > 50
    assert not (target.root / "u").exists()
    await still_serves(target)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_bridge_survives_or_hangs_up_on_nearly_right_messages(target: NamespacedGuest, seed: int) -> None:
    random_ = random.Random(seed)
    end, count = time.monotonic() + FUZZ_S, 0
    while time.monotonic() < end:
        stream = await target.stream()
        with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            await stream.receive()
            for _ in range(random_.randrange(1, 60)):
                await stream.send(b"".join(message(random_) for _ in range(random_.randrange(1, 9))))
                count += 1
                with anyio.move_on_after(0.002):
                    await stream.receive(1 << 20)
        await stream.aclose()
        assert stream.process.returncode in (0, 1)
        await revived(target)
    assert count > 50
    await still_serves(target)


async def test_whoever_freezes_everything_again_and_goes_leaves_nobody_deaf(target: NamespacedGuest) -> None:
    """What it starts meanwhile takes a while to stand still, so that several requests are under way."""
    again = exec_payload(0, "/", ["sh", "-c", "while :; do :; done"], ["PATH=/usr/bin"])
    for _ in range(20):
        with RawPeer(await target.socket()) as peer:
            peer.receive()
            assert peer.send(frame(Type.FREEZE, 1, b""))
            assert peer.receive() is not None
            for number in range(2, 9):
                peer.send(frame(Type.EXEC, number, again), 2)
                peer.send(frame(Type.FREEZE, number + 10, b""))
        await still_serves(target)


@pytest.mark.parametrize("data", [b"\xff" * 100, b"\0" * 11, b"", bytes(1 << 20), b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_bridge_hangs_up_on_what_are_no_frames(target: NamespacedGuest, data: bytes) -> None:
    stream = await target.stream()
    with anyio.fail_after(10):
        await stream.receive()
        with anyio.move_on_after(1), contextlib.suppress(anyio.BrokenResourceError):
            await stream.send(data)  # a bridge whose answers nobody takes reads no more
        await stream.aclose()
    assert stream.process.returncode in (0, 1)
    await still_serves(target)


async def test_a_sanitized_agent_does_all_that_agents_do(target: NamespacedGuest) -> None:
    """The checks are worth something only where the code was reached."""
    async with target.connected() as carrier:
        assert (await run(carrier, "cat", "/no/such/file")).result.exit_code == 1
        assert (await run(carrier, "no-such-program")).result.exit_code == 127
        await shell(carrier, "mkdir -p /area/a/b; seq 1 1000 > /area/a/b/c; ln /area/a/b/c /area/a/d; ln -s a /area/l")
        async with (await carrier.source(Type.PACK, fields(0, 99, 9999, "/area") + strings(()))).stream as stream:
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    await stream.receive()
        await carrier.request(Type.REMOVE, fields(1, "/area/a"))
        with pytest.raises(OSError):
            await carrier.request(Type.RENAME, fields(0, "/area/x", "/area/y"))
        await carrier.request(Type.FREEZE, b"")
        await carrier.request(Type.THAW, b"")
    await still_serves(target)
