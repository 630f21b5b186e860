"""What the lead of a release pastes into RESULTS.md says what was measured."""

import json
from pathlib import Path

from tests.benchmarks.measuring import Floor, Row, Samples
from tests.benchmarks.tables import joined_table, run_from_json, table

__all__: list[str] = []

_SAMPLES = Samples(values=[1.0, 2.0, 12.0])


def test_a_row_says_whether_it_met_its_target_and_how_far_it_is_from_its_floor() -> None:
    slow = Row.of("slow", _SAMPLES, floor=Floor(what="bare", median=0.5), target=1.5)
    small = Row.of("small", _SAMPLES, unit="MiB", target=2.5)
    lines = table([slow, small]).splitlines()[2:]
    assert lines == [
        "| slow | 2.00 ms | 12.0 ms | 3 | bare: 0.500 ms | 4 | missed: 1.5 ms |",
        "| small | 2.00 MiB | 12.0 MiB | 3 |  |  | met: 2.5 MiB |",
    ]


def test_runs_are_joined_as_json_remembers_them(tmp_path: Path) -> None:
    one = Row.of("one", _SAMPLES, floor=Floor(what="bare", median=0.5), target=1.5)
    two = Row.of("two", Samples(values=[3.0]))
    for name, rows in (("root", [one, two]), ("user", [one])):
        fields = {"user": name, "file_system": "ext4", "rows": [row.as_json() for row in rows]}
        (tmp_path / name).write_text(json.dumps(fields))
    joined = joined_table([run_from_json(tmp_path / "root"), run_from_json(tmp_path / "user")])
    head, _, first, second = joined.splitlines()
    assert "| root, ext4 | user, ext4 |" in head
    missed = "2.00 ms (12.0 ms), missed"
    assert first == f"| one | 3 | {missed} | {missed} | bare: 0.500 ms | 1.5 ms |"
    assert second == "| two | 1 | 3.00 ms |  |  |  |"
