"""Limits as people write them."""

from collections.abc import Mapping

import pytest

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.settings.limits import BEST_EFFORT, LIMIT_OPTIONS, find_limits

__all__: list[str] = []

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2048 * MIB), ("2G", 2048 * MIB), ("2g", 2048 * MIB), ("4GB", 4_000_000_000), ("512m", 512 * MIB),
        ("1.5 GiB", 1536 * MIB), ("33554432", 32 * MIB), ("20 mb", 20_000_000), ("1TiB", 1 << 40),
    ],
)  # fmt: skip
def test_a_size_may_be_written_as_people_write_it(text: str, size: int) -> None:
    wanted = find_limits({"memory": text}, {})
    assert wanted is not None
    assert wanted.limits == Limits(memory_bytes=size)


@pytest.mark.parametrize(("text", "count"), [("1.5", 1.5), ("2core", 2.0), ("1 core", 1.0), ("0.25", 0.25)])
def test_processors_may_be_parts_and_called_cores(text: str, count: float) -> None:
    wanted = find_limits({"cpus": text}, {})
    assert wanted is not None
    assert wanted.limits.cpu_count == count


@pytest.mark.parametrize(("text", "seconds"), [("600", 600), ("10min", 600), ("2h", 7200), ("0.5s", 0.5)])
def test_a_time_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    wanted = find_limits({"command-time": text}, {})
    assert wanted is not None
    assert wanted.limits.command_s == seconds


@pytest.mark.parametrize(
    ("options", "environ", "part"),
    [
        ({"memory": "lots"}, {}, "--memory='lots'"),
        ({"memory": "2"}, {}, "less than 16 MiB"),
        ({"memory": "1.5.2GiB"}, {}, "a size such as"),
        ({"memory": "-1GiB"}, {}, "a size such as"),
        ({"memory": ""}, {}, "a size such as"),
        ({"pids": "1.5"}, {}, "a number"),
        ({"pids": "٣٠"}, {}, "a number"),
        ({"cpus": "nan"}, {}, "a number"),
        ({"cpus": "inf"}, {}, "a number"),
        ({"command-time": "5 days"}, {}, "a time such as"),
        ({}, {"MCP_SANDBOX_OPEN_FILES": "x"}, "MCP_SANDBOX_OPEN_FILES='x'"),
        ({}, {"MCP_SANDBOX_BEST_EFFORT": "maybe"}, "neither 1 nor 0"),
    ],
)
def test_what_cannot_be_understood_is_named(options: Mapping[str, str], environ: Mapping[str, str], part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_limits(options, environ)
    assert part in str(raised.value)


def test_an_option_comes_before_its_variable_and_nothing_asked_for_is_nothing() -> None:
    environ = {"MCP_SANDBOX_MEMORY": "1GiB", "MCP_SANDBOX_PIDS": "64", "MCP_SANDBOX_BEST_EFFORT": "1"}
    wanted = find_limits({"memory": "2GiB"}, environ)
    assert wanted is not None
    assert wanted.limits == Limits(memory_bytes=2048 * MIB, pids=64)
    assert wanted.best_effort
    assert find_limits({}, {"MCP_SANDBOX_MEMORY": "", "MCP_SANDBOX_BEST_EFFORT": "0"}) is None
    assert find_limits(dict.fromkeys((*LIMIT_OPTIONS, BEST_EFFORT)), {}) is None


def test_every_limit_has_an_option() -> None:
    assert {option.field for option in LIMIT_OPTIONS.values()} == set(Limits.__dataclass_fields__)
