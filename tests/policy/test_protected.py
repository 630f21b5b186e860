"""Names in a project that programs of its user obey."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sandbox.policy.protected import why_protected

__all__: list[str] = []


def _nothing(_: str) -> tuple[str, ...]:
    return ()


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", ".git/hooks/pre-commit", ".git/hooks", ".git/info/attributes", ".git/modules/a/config",
        ".git/worktrees/a/gitdir", ".git/objects/info/alternates", ".git/commondir", ".git/config.worktree", ".git",
        "deep/er/.git/config", ".GIT/config", ".gIt/Hooks/x", ".git./config", ".git /config", ".g\u200cit/config",
        "git~1/config", ".vscode/tasks.json", ".Vscode", ".idea/workspace.xml", ".mcp.json", "sub/.mcp.json",
        ".claude/settings.json", ".claude/hooks/x", ".codex/config.toml", ".cursor/mcp.json", ".envrc", "a/.envrc",
        ".bashrc", ".zshenv", "mcp-sandbox.yaml", "agent.manifest", ".husky/pre-commit", ".gitmodules",
        ".devcontainer/devcontainer.json", ".ssh/authorized_keys",
    ],
)  # fmt: skip
def test_cfg04_what_programs_obey_is_protected_wherever_and_however_it_is_written(path: str) -> None:
    assert why_protected(path, _nothing)


@pytest.mark.parametrize(
    "path",
    [
        "src/app.py", "config", "hooks/x", "HEAD", "info", ".gitignore", ".gitattributes", ".github/workflows/ci.yml",
        ".git/objects/ab/cdef", ".git/refs/heads/x", ".git/index", ".git/HEAD", ".git/logs/HEAD", ".git/packed-refs",
        "vscode/x", "profile", "bashrc", "AGENTS.md", ".env",
    ],
)  # fmt: skip
def test_plain_work_is_not_protected(path: str) -> None:
    assert why_protected(path, _nothing) == ""


@pytest.mark.parametrize("path", ["b/HEAD", "b/config", "b/hooks/post-checkout", "b/head", "b/commondir"])
@pytest.mark.parametrize("names", [("HEAD", "objects", "refs"), ("head", "commondir")])
def test_a_directory_that_git_takes_for_a_repository_is_protected(path: str, names: tuple[str, ...]) -> None:
    assert why_protected(path, lambda directory: names if directory == "b" else ())
    assert why_protected(path, _nothing) == ""
    assert why_protected("b/objects/x", lambda _: names) == ""


def test_a_git_directory_itself_is_not_but_a_file_or_link_of_that_name_is() -> None:
    assert why_protected(".git", _nothing, is_directory=True) == ""
    assert why_protected("a/.git", _nothing)


@given(st.lists(st.sampled_from(["a", "b", "src"]), max_size=3), st.lists(st.sampled_from(["x", "y"]), max_size=3))
def test_what_lies_below_or_above_changes_nothing(above: list[str], below: list[str]) -> None:
    assert why_protected("/".join([*above, ".claude", *below]), _nothing)
    assert why_protected("/".join([*above, "src", *below]), _nothing) == ""
