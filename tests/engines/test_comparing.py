"""What the role `compare` cannot look at it says, and what it is asked for has no limit."""

import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from mcp_sandbox.core.differences import DiffRequest, LiveState, StartState
from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.engines.comparing import RECORD
from mcp_sandbox.guest.binary import guest_binary
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.testing.driving import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is made of Linux namespaces")

UNSEEN: Final = 16
MANY: Final = """
import os
for number in range(0, 40000, 20):
    open(f"/workspace/{number:0200}", "w").close()
"""


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """The guest agent's program."""
    path = tmp_path / "guest"
    path.write_bytes(guest_binary())
    path.chmod(0o755)
    return path


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[LocalProvider]:
    """The embedded engine."""
    async with LocalProvider(tmp_path / "state") as opened:
        yield opened


def compare(guest: Path, before: Path, after: Path, open_files: int) -> dict[str, int]:
    """Compare two directories with few descriptors; return what is said of each path."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    numbers = ("1000", "1000000", "0", "0", "0", "1", "0")
    command = [guest, "compare", "user.overlay.", *numbers, "/w", "1", f"l{before}", "1", f"l{after}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, preexec_fn=limit)
    if done.returncode:
        return {"": UNSEEN}
    return dict(_records(done.stdout))


def _records(data: bytes) -> Sequence[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    while len(data) > RECORD.size:
        _, _, what, *_, length, _, _ = RECORD.unpack_from(data)
        found.append((os.fsdecode(data[RECORD.size : RECORD.size + length]), what))
        data = data[RECORD.size + length :]
    return found


def test_a_diff_that_runs_out_of_descriptors_names_what_it_did_not_see(guest: Path, tmp_path: Path) -> None:
    """It passed over directories that it could not open, and looked complete."""
    for side in ("before", "after"):
        for name in ("a", "a/b", "c"):
            (tmp_path / side / name).mkdir(parents=True)
            (tmp_path / side / name / "file").write_text(side)
    whole = compare(guest, tmp_path / "before", tmp_path / "after", 64)
    assert {path for path, what in whole.items() if what != UNSEEN} == {"/w/a/file", "/w/a/b/file", "/w/c/file"}
    incomplete = 0
    for open_files in range(4, 16):
        found = compare(guest, tmp_path / "before", tmp_path / "after", open_files)
        incomplete += UNSEEN in found.values()
        assert UNSEEN in found.values() or found == whole
    assert incomplete >= 4


async def test_more_paths_can_be_asked_for_than_a_command_line_holds(provider: LocalProvider) -> None:
    """It was refused with a raw E2BIG."""
    sandbox = await provider.create(SandboxSpec(id=new_sandbox_id()))
    async with sandbox:
        assert (await run(sandbox, "python3", "-c", MANY)).exit_code == 0
        asked = tuple(f"/workspace/{number:0200}" for number in range(20_000))
        start, live = StartState(sandbox=sandbox.id), LiveState(sandbox=sandbox.id)
        found = await provider.diff(DiffRequest(before=start, after=live, paths=asked))
        assert [change.path for change in found.changes] == list(asked[::20])
        nested = await provider.diff(DiffRequest(before=start, after=live, paths=("/", "/workspace"), limit=5))
        assert nested.truncated
    await provider.destroy(sandbox.id)
