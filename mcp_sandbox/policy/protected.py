"""Names in a project that make programs of its user do something: what a sandbox wrote there stays in the sandbox.

Whoever opens a project in an editor, starts an agent in it, enters it with a shell or calls git runs what these files
say, without having been asked. They come home only if a person says so, by name, at the command line.
"""

import unicodedata
from collections.abc import Callable, Collection, Sequence
from typing import Final

__all__ = ["why_protected"]

_EDITORS: Final = """
    .vscode .idea .cursor .windsurf .zed .fleet .devcontainer .devcontainer.json .vimrc .nvimrc .exrc .nvim.lua
    .dir-locals.el
"""
_AGENTS: Final = """
    .mcp.json .claude .claude.json .codex .gemini .opencode opencode.json opencode.jsonc .continue .roo .amazonq
"""
_OURS: Final = "mcp-sandbox.yaml mcp-sandbox.yml .mcp-sandbox .mcp-sandbox.yaml .mcp-sandbox.yml agent.manifest"
_SHELLS: Final = """
    .bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin .kshrc .cshrc .tcshrc
    .envrc .direnv .autoenv.zsh
"""
_TRUSTED: Final = ".ssh .gnupg .netrc .git-credentials .gitconfig"
_ANYWHERE: Final = {
    **dict.fromkeys(_EDITORS.split(), "an editor obeys it"),
    **dict.fromkeys(_AGENTS.split(), "an agent obeys it"),
    **dict.fromkeys(_OURS.split(), "it says what a sandbox of this project may do"),
    **dict.fromkeys(_SHELLS.split(), "a shell runs it"),
    **dict.fromkeys(_TRUSTED.split(), "programs trust it"),
    **dict.fromkeys((".husky", ".gitmodules"), "git obeys it"),
}
_GIT_DATA: Final = frozenset(
    {
        *("objects", "refs", "logs", "index", "head", "packed-refs", "orig_head", "fetch_head", "merge_head"),
        *("cherry_pick_head", "revert_head", "commit_editmsg", "merge_msg", "merge_mode", "squash_msg", "shallow"),
    }
)
"""What is in a git directory and makes git do nothing; all else there does, or may in the next version."""
_REPOSITORY: Final = frozenset({"head", "config", "hooks", "info", "config.worktree", "commondir"})


def why_protected(path: str, names_in: Callable[[str], Collection[str]], *, is_directory: bool = False) -> str:
    """Return why a path is protected, as a clause; empty if it is not.

    Args:
        path: Relative to the project. Letters count without case, as on file systems that fold it.
        names_in: Returns what a directory of the project holds now or would hold then, by its path; "" is the top.
        is_directory: Whether it is one.
    """
    above: list[str] = []
    names = path.split("/")
    for at, name in enumerate(names):
        plain = _plain(name)
        if plain in _ANYWHERE:
            return _ANYWHERE[plain]
        if plain in (".git", "git~1"):
            return "git obeys it" if _is_obeyed([_plain(each) for each in names[at + 1 :]], is_directory) else ""
        if plain in _REPOSITORY and _is_repository({_plain(each) for each in names_in("/".join(above))}):
            return "git takes the directory for a repository, and obeys it"
        above.append(name)
    return ""


def _plain(name: str) -> str:
    """Return a name as the most forgiving file system would take it."""
    shown = "".join(letter for letter in unicodedata.normalize("NFC", name) if unicodedata.category(letter) != "Cf")
    return shown.casefold().rstrip(". ") or name


def _is_obeyed(inner: Sequence[str], is_directory: bool) -> bool:
    """Whether git obeys a path in `.git`; `.git` itself leads it to another place if it is no directory."""
    if not inner:
        return not is_directory
    return inner[0] not in _GIT_DATA or inner[:2] == ["objects", "info"]


def _is_repository(names: Collection[str]) -> bool:
    """Whether git takes a directory for one, whatever it is called."""
    return "head" in names and ("commondir" in names or {"objects", "refs"} <= {*names})
