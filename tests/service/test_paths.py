"""Where the paths that a model gives lead."""

import pytest

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.service.paths import PathResolver, display, resolve, shorten


@pytest.mark.parametrize(
    ("given_path", "resolved"),
    [
        ("a.py", "/workspace/a.py"),
        ("./src/../a.py", "/workspace/a.py"),
        ("src//b.py", "/workspace/src/b.py"),
        (".", "/workspace"),
        ("../etc/hosts", "/etc/hosts"),
        ("../../../../etc/hosts", "/etc/hosts"),
        ("/etc/../tmp/x", "/etc/../tmp/x"),
        ("/workspace/link/..", "/workspace/link/.."),
        ("-rf", "/workspace/-rf"),
        ("bad\udcffname", "/workspace/bad\udcffname"),
    ],
)
def test_relative_paths_start_at_the_workspace_and_absolute_ones_stay(given_path: str, resolved: str) -> None:
    assert resolve(given_path) == resolved


@pytest.mark.parametrize(
    ("given_path", "reason"),
    [("", "empty"), ("a\0b", "NUL"), ("x" * 4097, "4,097 bytes"), ("é" * 2100, "bytes"), ("a\ud800", "surrogate")],
)
def test_what_no_file_name_can_be_is_refused(given_path: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        resolve(given_path)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/home/me/app", "/workspace"),
        ("/home/me/app/src/a.py", "/workspace/src/a.py"),
        ("/home/me/app/../app/a.py", "/workspace/a.py"),
        ("/home/me/app-secret/a.py", None),
        ("/home/me", None),
        ("src/a.py", None),
    ],
)
def test_b066_a_path_of_the_hosts_project_is_known_for_what_it_is(path: str, inside: str | None) -> None:
    assert PathResolver("/home/me/app").inside(path) == inside


@pytest.mark.parametrize("project", [None, "/", "/workspace"])
def test_a_project_that_is_nowhere_else_explains_nothing(project: str | None) -> None:
    assert PathResolver(project).inside("/workspace/a.py") is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain name.py", "plain name.py"),
        ("naïve.py", "naïve.py"),
        ("two\nlines", r"$'two\nlines'"),
        ("esc\x1b[2J", r"$'esc\e[2J'"),
        ("bad\udcffname", r"$'bad\xffname'"),
        ("\u202egnp.exe", r"$'\xe2\x80\xaegnp.exe'"),
        ("$'quoted'", r"$'$\'quoted\''"),
        (" ", "$' '"),
    ],
)
def test_ft04_unprintable_names_are_shown_as_the_shell_would_write_them(name: str, shown: str) -> None:
    assert display(name) == shown


def test_names_in_the_workspace_are_shown_relative_to_it() -> None:
    assert shorten("/workspace/a/b") == "a/b"
    assert shorten("/workspace") == "/workspace"
    assert shorten("/workspaces/a") == "/workspaces/a"
