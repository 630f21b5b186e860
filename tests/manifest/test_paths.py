"""Which globs are about the workspace, and which are about the machine."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_sandbox.hostfs.denied import Denied, denied_paths
from mcp_sandbox.manifest.paths import glob_problem, is_whole, of_workspace, shows_usr

__all__: list[str] = []


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("/workspace/secrets/**", ("secrets/**",)),
        (".env", (".env",)),
        ("**/*.pem", ("**/*.pem",)),
        ("~/.ssh/**", ()),
        ("/etc/**", ()),
        ("~/src/app/secrets/**", ("secrets/**",)),
        ("/home/me/src/app/.env", (".env",)),
        ("~/**", ()),
        ("/home/me/src/application/x", ()),
        ("//workspace//other/./f", ("other/f",)),
        ("/**/.env", ("**/.env",)),
        ("/*/.env", (".env",)),
        ("/work*/src/**", ("src/**",)),
        ("/workspace", ("*",)),
        ("/workspace/**", ("**",)),
        ("/**", ()),
    ],
)
def test_what_a_glob_is_about(glob: str, expected: tuple[str, ...]) -> None:
    assert of_workspace([glob], "/home/me/src/app", "/home/me") == expected


@pytest.mark.parametrize(
    ("glob", "expected"),
    [("/usr/**", True), ("/usr", True), ("/usr/local/bin/x", True), ("/**", True), ("/", True), ("/us*/x", True),
     ("/etc/**", False), ("/usrlocal/x", False), ("~/.ssh/**", False), ("**/usr", False), ("/u", False)],
)  # fmt: skip
def test_which_globs_are_about_the_programs_of_the_machine(glob: str, expected: bool) -> None:
    assert shows_usr(glob) is expected


@pytest.mark.parametrize("glob", ["../x", "/workspace/../etc", "a/../../b", "[", "{a"])
def test_what_is_no_glob_or_leads_upwards_is_refused(glob: str) -> None:
    assert glob_problem(glob)


def test_the_whole_workspace_is_one_of_three_words() -> None:
    assert is_whole(["/tmp/**", "/workspace/**"])
    assert not is_whole(["/workspace/src/**"])


def test_the_topmost_denied_paths_are_found_and_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    project = tmp_path / "project"
    for path in (outside / "x.pem", project / "s/deep/key", project / "a/b/k.pem", project / "a/ok", project / ".env"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (project / "link").symlink_to(outside)
    globs = ["s/**", "**/*.pem", ".env", "a/later", "nowhere/later", "link/x.pem"]
    assert sorted(denied_paths(str(project), globs)) == [".env", "a/b/k.pem", "a/later", "s"]


_NAME = st.sampled_from(["a", "b", "c.pem", ".env"])
_PATH = st.lists(_NAME, min_size=1, max_size=4).map("/".join)
_GLOB = st.lists(st.sampled_from(["a", "b", "*", "**", "*.pem", ".env"]), min_size=1, max_size=3).map("/".join)


@settings(max_examples=150, deadline=None)
@given(st.sets(_PATH, max_size=12), st.lists(_GLOB, min_size=1, max_size=3))
def test_a_path_is_hidden_exactly_if_it_or_one_above_it_is_denied(paths: set[str], globs: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as root:
        for path in sorted(paths):
            target = Path(root, path)
            if not any(each.is_file() for each in target.parents if each != Path(root)) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("x")
        found = denied_paths(root, globs)
        denied = Denied(globs)
        for directory, names, files in os.walk(root):
            for name in (*names, *files):
                relative = os.path.relpath(os.path.join(directory, name), root)
                parts = relative.split("/")
                above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
                assert any(each in found for each in above) is any(map(denied.hides, above)), (relative, globs)


def test_a_deep_project_is_looked_at_to_its_end(tmp_path: Path) -> None:
    deep = "/".join("d" * 1200)
    subprocess.run(["mkdir", "-p", str(tmp_path / deep)], check=True)
    (tmp_path / deep / ".env").touch()
    assert denied_paths(str(tmp_path), ["**/.env"]) == [f"{deep}/.env"]
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)
