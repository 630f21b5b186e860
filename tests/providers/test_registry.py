"""Providers are found by name, loaded only when used, and never taken over."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import ConfigError, ProviderUnavailableError
from mcp_sandbox.providers import registry

MODULE = """
from mcp_sandbox.providers.memory import MemoryProvider
class Mine(MemoryProvider):
    @property
    def name(self): return "mine"
NOT_A_CLASS = 1
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution that brings providers, a broken one and one that is called like ours."""
    (tmp_path / "their_provider.py").write_text(MODULE)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINT_GROUP}]\n"
        "mine = their_provider:Mine\n"
        "broken = their_provider_needs_an_sdk:Mine\n"
        "wrong = their_provider:NOT_A_CLASS\n"
        "local = their_provider:Mine\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("their_provider", None)


def test_built_in_names_are_listed_in_order() -> None:
    assert list(registry.BUILTIN) == sorted(registry.BUILTIN)
    assert registry.BUILTIN.items() <= registry.known().items()


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_every_built_in_provider_loads_and_answers_to_its_name(name: str, tmp_path: Path) -> None:
    assert registry.load(name, tmp_path).name == name


def test_an_unknown_name_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Use 'local'"):
        registry.load("locl", tmp_path)
    with pytest.raises(ConfigError, match="docker, gvisor, local\\. Use one"):
        registry.load("zzz", tmp_path)


def test_a_provider_of_another_package_is_known_unloaded_and_loads_by_name(third_party: None, tmp_path: Path) -> None:
    assert registry.known()["mine"].module == "their_provider"
    assert "their_provider" not in sys.modules
    assert registry.load("mine", tmp_path).name == "mine"


def test_a_name_of_ours_cannot_be_taken_over(third_party: None) -> None:
    assert registry.known()["local"] == registry.BUILTIN["local"]


def test_a_provider_whose_sdk_is_missing_says_what_is_and_how_to_get_it(third_party: None, tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailableError, match=r"their_provider_needs_an_sdk.*Install 'theirs' again"):
        registry.load("broken", tmp_path)


def test_what_is_no_provider_is_refused(third_party: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a subclass"):
        registry.load("wrong", tmp_path)
