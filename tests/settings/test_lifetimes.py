"""Durations as people write them."""

import pytest

from mcp_sandbox.settings.lifetimes import duration_s, lifetimes

__all__: list[str] = []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("15m", 900.0), ("15min", 900.0), ("12h", 43_200.0), ("30d", 2_592_000.0), ("never", None)],
)
def test_a_duration_has_a_unit(text: str, seconds: float | None) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "30", "0d", "-1d", "1.5h", "1 d", "1w", "1mi", "1dd", "٣d", "Never"])
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration_s(text)


def test_what_is_not_said_is_left_out() -> None:
    assert lifetimes(idle_time=None, max_age=None, max_sandboxes=None) == {}
    said = lifetimes(idle_time="15m", max_age="never", max_sandboxes="3")
    assert said == {"idle_s": 900.0, "max_age_s": None, "max_sandboxes": 3}


def test_an_idle_time_in_which_a_call_may_be_under_way_is_refused() -> None:
    with pytest.raises(ValueError, match="shortest idle time"):
        lifetimes(idle_time="59s", max_age=None, max_sandboxes=None)


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_number_of_sandboxes_is_a_number(text: str) -> None:
    with pytest.raises(ValueError, match="no number"):
        lifetimes(idle_time=None, max_age=None, max_sandboxes=text)
