"""What is recorded and said of limits."""

from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.service.limits import changed_limits, limits_in, limits_text, own_limits, recorded_limits
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.store.record import SandboxRecord

__all__: list[str] = []

SOME = Limits(memory_bytes=2 << 30, cpu_count=1.5, disk_bytes=5 << 30, inodes=1000, command_s=90)


def test_a_record_gives_back_the_limits_that_it_was_made_with() -> None:
    record = SandboxRecord(
        id=new_sandbox_id(), provider="local", principal="uid:0", project="", created_at="", last_used_at="",
        limits=recorded_limits(SOME), best_effort=True,
    )  # fmt: skip
    again = SandboxRecord.from_json(record.to_json())
    assert again == record
    assert limits_in(again.limits) == SOME


def test_limits_of_a_newer_version_are_passed_over() -> None:
    assert limits_in({"memory_bytes": 1, "gpu_count": 2}) == Limits(memory_bytes=1, pids=None, open_files=None)


def test_limits_are_said_with_their_units() -> None:
    assert limits_text(recorded_limits(SOME)) == (
        "memory 2 GiB, cpus 1.5, pids 512, open files 65536, disk 5 GiB, inodes 1000, command time 90 s"
    )
    assert own_limits(recorded_limits(SOME)).startswith("memory 2 GiB, cpus 1.5, disk 5 GiB")
    assert own_limits(recorded_limits(Limits())) == ""


def test_other_limits_for_an_existing_sandbox_are_told_if_any_were_asked_for() -> None:
    told = changed_limits(recorded_limits(SOME), Limits(memory_bytes=1 << 30), "sb_2abc")
    assert "sb_2abc, is destroyed" in told
    assert "memory 2 GiB" in told
    assert "memory 1 GiB" in told
    assert changed_limits(recorded_limits(SOME), SOME, "sb_2abc") == ""
    assert changed_limits(recorded_limits(SOME), Limits(), "sb_2abc") == ""
    assert changed_limits({}, SOME, "sb_2abc") == "", "an old version did not note them"
