"""The agent where the kernel offers less: Linux before 5.6, gVisor, old seccomp profiles."""

from collections.abc import Iterator

import pytest
from command_record import shell
from compiled import compile_agent
from guest_world import NamespacedGuest, namespaces_work

from mcp_sandbox.core.files import ListRequest, ReadRequest, WriteRequest
from mcp_sandbox.core.streams import read_all
from mcp_sandbox.engines.guest_files import list_tree, read_file, write_file

__all__: list[str] = []


@pytest.fixture
def old_kernel_guest() -> Iterator[NamespacedGuest]:
    """An agent that finds no openat2."""
    if reason := namespaces_work():
        pytest.skip(reason)
    program = compile_agent("-DOPENAT2=100000", "-static")
    if program is None:
        pytest.skip("no C compiler here")
    with NamespacedGuest("local", program=program) as guest:
        yield guest


async def test_files_work_without_openat2(old_kernel_guest: NamespacedGuest) -> None:
    carrier = await old_kernel_guest.connect()
    await write_file(carrier, WriteRequest(path="/area/deep/file"), b"data")
    async with await read_file(carrier, ReadRequest(path="/area/deep/file")) as reader:
        assert await read_all(reader, 100) == b"data"
    listing = await list_tree(carrier, ListRequest(path="/area", depth=2))
    assert {entry.path for entry in listing.entries} == {"/area/deep", "/area/deep/file"}
    with pytest.raises(PermissionError):
        await read_file(carrier, ReadRequest(path="/proc/1/environ"))
    assert (await shell(carrier, "cat /area/deep/file")).text() == b"data"
    await carrier.aclose()
