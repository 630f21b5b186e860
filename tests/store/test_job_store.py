"""Job records on disk."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import NotFoundError, StateError
from mcp_sandbox.core.exec import ExecResult, Termination
from mcp_sandbox.store import jobs
from mcp_sandbox.store.jobs import JobOwner, JobRecord, JobStatus, JobStore, this_process

__all__: list[str] = []

FIRST_SCHEMA = """{
  "schema": 1, "id": "j7", "command": "make", "cwd": "/workspace", "owner": {"pid": 1, "started": "1", "boot": "x"},
  "stdout_path": "/var/spool/mcp-sandbox/j7.out", "stderr_path": "/var/spool/mcp-sandbox/j7.err",
  "started_at": "2026-11-29T00:00:00.000Z", "timeout_s": null, "ended_at": "2026-11-29T00:00:01.000Z",
  "status": "exited", "exit_code": 2, "signal": null, "duration_s": 1.0, "detail": "", "output_bytes": 12
}"""


def _create(store: JobStore, command: str = "make") -> JobRecord:
    return store.create(
        command=command, cwd="/workspace", timeout_s=5.0, spool_directory="/spool", started_at="2026-11-29T00:00:00Z"
    )


def test_a_new_job_is_running_and_owned_by_this_process(tmp_path: Path) -> None:
    record = _create(JobStore(tmp_path))
    assert (record.id, record.status, record.owner) == ("j1", JobStatus.RUNNING, this_process())
    assert JobStore(tmp_path).get("j1") == record
    assert record.stdout_path == "/spool/j1.out"


def test_the_end_of_a_job_is_remembered(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    result = ExecResult(exit_code=None, signal=9, termination=Termination.OOM, duration_s=1.5, detail="limit")
    store.save(_create(store).ended(result, output_bytes=7))
    found = store.get("j1")
    assert found.result == result
    assert (found.status, found.output_bytes) == (JobStatus.OOM, 7)
    assert found.ended_at


def test_ids_are_given_once_whoever_asks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = [job.result().id for job in [pool.submit(_create, JobStore(tmp_path)) for _ in range(24)]]
    assert sorted(ids, key=lambda job_id: int(job_id[1:])) == [f"j{number}" for number in range(1, 25)]


def test_a_lost_count_is_made_good_from_the_records(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    _create(store)
    (tmp_path / "jobs" / "count").write_text("")
    assert _create(store).id == "j2"


def test_old_finished_jobs_are_forgotten_and_running_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEPT", 2)
    store = JobStore(tmp_path)
    _create(store)
    for _ in range(3):
        store.save(_create(store).ended(ExecResult(exit_code=0), output_bytes=0))
    _create(store)
    assert [record.id for record in store.forget_oldest()] == ["j2", "j3"]
    assert [record.id for record in store.records()] == ["j1", "j4", "j5"]
    assert not store.forget_oldest()


def test_a_long_command_is_remembered_by_its_beginning(tmp_path: Path) -> None:
    assert len(_create(JobStore(tmp_path), "x" * 1_000_000).command) < 3_000


def test_a_job_whose_server_died_is_lost(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = jobs._identity(process.pid)  # pyright: ignore[reportPrivateUsage]
        assert owner is not None
        store = JobStore(tmp_path)
        store.save(replace(_create(store), owner=owner))
        assert store.get("j1").status is JobStatus.RUNNING
        os.kill(process.pid, signal.SIGKILL)
    lost = store.get("j1")
    assert lost.status is JobStatus.LOST
    assert lost.result is not None
    assert lost.result.termination is Termination.LOST


def test_a_job_of_an_earlier_boot_is_lost(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    here = this_process()
    store.save(replace(_create(store), owner=JobOwner(pid=here.pid, started=here.started, boot="another")))
    assert store.get("j1").status is JobStatus.LOST


def test_the_first_schema_can_be_read() -> None:
    record = JobRecord.parse(FIRST_SCHEMA.encode())
    assert (record.id, record.exit_code, record.status) == ("j7", 2, JobStatus.EXITED)


def test_unknown_fields_are_passed_over_and_newer_schemas_refused() -> None:
    data = json.loads(FIRST_SCHEMA)
    assert JobRecord.parse(json.dumps({**data, "new": 1}).encode()).id == "j7"
    with pytest.raises(StateError, match="newer mcp-sandbox"):
        JobRecord.parse(json.dumps({**data, "schema": 2}).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"schema": "x"}', b"\xff", FIRST_SCHEMA[:-40].encode()])
def test_a_damaged_record_is_said_to_be_one_and_hides_no_other(tmp_path: Path, text: bytes) -> None:
    store = JobStore(tmp_path)
    _create(store)
    (tmp_path / "jobs" / "j2.json").write_bytes(text)
    with pytest.raises(StateError, match="damaged"):
        store.get("j2")
    assert [record.id for record in store.records()] == ["j1"]


@pytest.mark.parametrize("wrong", ["", "j", "j0", "1", "J1", "j1/../j1", "j1\n", "j99999999999"])
def test_what_is_no_id_is_not_looked_for(tmp_path: Path, wrong: str) -> None:
    store = JobStore(tmp_path)
    _create(store)
    with pytest.raises(NotFoundError):
        store.get(wrong)
