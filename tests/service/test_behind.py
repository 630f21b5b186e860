"""Work behind the answers: in order, once for each key, and finished or dropped at the end."""

import anyio
import anyio.lowlevel
import pytest

from mcp_sandbox.service.behind import Behind

__all__: list[str] = []


async def test_work_is_done_in_order_and_never_twice_at_once() -> None:
    said: list[str] = []
    running = 0

    async def work(name: str) -> None:
        nonlocal running
        running += 1
        await anyio.lowlevel.checkpoint()
        assert running == 1
        running -= 1
        said.append(name)

    async with Behind() as behind:
        for name in ("a", "b", "a", "c"):
            behind.do(name, lambda name=name: work(name))
        assert said == []
        with anyio.fail_after(5):
            await behind.finished()
        assert said == ["a", "b", "c"]


async def test_work_that_is_asked_for_while_it_runs_is_done_once_more() -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            behind.do("a", work)

    async with Behind() as behind:
        behind.do("a", work)
        with anyio.fail_after(5):
            await behind.finished()
    assert runs == 2


async def test_a_failure_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    async def fail() -> None:
        raise OSError("the disk is gone")

    async def work() -> None:
        done.append("b")

    async with Behind() as behind:
        behind.do("a", fail)
        behind.do("b", work)
    assert done == ["b"]
    assert "the disk is gone" in caplog.text


async def test_leaving_begins_what_waits_and_drops_what_takes_too_long() -> None:
    began: list[str] = []

    async def hang() -> None:
        began.append("a")
        await anyio.sleep_forever()

    with anyio.fail_after(5):
        async with Behind() as behind:
            behind.do("a", hang)
            behind.do("b", hang)
    assert began == ["a"]
    behind.do("c", hang)
    assert began == ["a"]
