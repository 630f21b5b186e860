"""What survives a loss of power is synced behind the answer."""

import os
import threading
from pathlib import Path

import pytest

from mcp_sandbox.store.atomic import Settler, settle_now

__all__: list[str] = []


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced, in that order."""
    paths: list[str] = []
    really = os.fsync

    def note(descriptor: int) -> None:
        really(descriptor)
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", note)
    return paths


def test_a_file_is_synced_with_its_name(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "record").write_text("x")
    settle_now(tmp_path / "record")
    assert synced == ["record", tmp_path.name]
    settle_now(tmp_path / "gone")
    assert synced == ["record", tmp_path.name]


async def test_leaving_waits_for_what_was_asked(tmp_path: Path, synced: list[str]) -> None:
    async with Settler() as settler:
        for number in range(20):
            (tmp_path / str(number)).write_text("x")
            settler.later(tmp_path / str(number))
            settler.later(tmp_path / "never there")
    assert [name for name in synced if name != tmp_path.name] == [str(number) for number in range(20)]


async def test_asking_does_not_wait_and_leaving_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()

    def wait(_: int) -> None:
        stuck.wait()

    monkeypatch.setattr(os, "fsync", wait)  # a disk that does not answer
    try:
        async with Settler(patience_s=0.05) as settler:
            settler.later(tmp_path)
            settler.later(tmp_path)
    finally:
        stuck.set()


async def test_a_disk_that_fails_does_not_stop_the_others(
    tmp_path: Path, synced: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").write_text("x")
    async with Settler() as settler:
        settler.later(tmp_path / "link")
        settler.later(tmp_path / "file")
    assert "file" in synced
    assert "link is not on the disk yet" in caplog.text


async def test_what_comes_in_a_short_time_is_synced_once(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "record").write_text("x")
    async with Settler(gather_s=60) as settler:
        for _ in range(50):
            settler.later(tmp_path / "record")
    assert synced == ["record", tmp_path.name]
