"""What manifests can say and this version does not carry out: it is refused, never passed over."""

from collections.abc import Iterator
from typing import Final, NamedTuple, cast

from mcp_sandbox.manifest.keys import shown
from mcp_sandbox.manifest.narrowing import Narrowed
from mcp_sandbox.manifest.paths import is_whole, shows_usr

__all__ = ["Unsupported", "unsupported"]

_LATER: Final = {
    "capabilities.commands.remove": "Leave it out, or start from an image that does not have these programs",
    "ports": "Leave it out, and use `mcp-sandbox expose`",
    "services": "Leave it out, and start it as a job",
    "secrets": "Leave it out; credentials stay outside",
}
"""Keys, or groups of keys, and what to do instead."""
_SHOW_USR: Final = ("local", "gvisor")


class Unsupported(NamedTuple):
    """A key that is not carried out."""

    key: str
    sources: tuple[str, ...]
    why: str
    fix: str

    def __str__(self) -> str:
        """Return it for a reader."""
        return f"{self.key} in {' and '.join(self.sources)}: {self.why}"


def unsupported(narrowed: Narrowed, provider: str) -> Iterator[Unsupported]:
    """Return what a provider does not carry out of what holds."""
    by = f"not supported yet by provider {provider!r}"
    for key, held in narrowed.held.items():
        if key == "capabilities.network.allowed":
            if held.value:
                why = f"{by}: nothing can be reached ({shown(key, held.value)} is asked for)"
                fix = "Leave it out, or say `--network none` to run without"
                yield Unsupported(key, held.sources, why, fix)
        elif key == "capabilities.commands.mode" and held.value == "strict":
            yield Unsupported(
                key, held.sources, f"{held.value!r} is {by}", "Use advisory; the sandbox holds either way"
            )
        elif key.startswith("sandbox.options."):
            owner, _, option = key.removeprefix("sandbox.options.").partition(".")
            if (owner, option) != ("docker", "runtime"):
                yield Unsupported(key, held.sources, "there is no such option", "Leave it out; docker has `runtime`")
        elif key.startswith("files.") and "git" in _keys(held.value):
            yield Unsupported(key, held.sources, f"`git` is {by}: nothing can be reached", "Use `from` or `content`")
        elif key == "capabilities.filesystem.denied":
            own = [glob for glob in cast("tuple[str, ...]", held.value) if shows_usr(glob)]
            if own and provider in _SHOW_USR and narrowed.value("environment.image") is None:
                why = f"{', '.join(own)} is {by}, whose sandboxes run the programs of the machine"
                yield Unsupported(key, held.sources, why, "Leave it out, or start from an image (environment.image)")
        elif key == "capabilities.filesystem.allowed":
            if not is_whole(cast("tuple[str, ...]", held.value)):
                why = f"a part of the workspace is {by}"
                fix = "Say /workspace/**, and deny the rest of it (capabilities.filesystem.denied)"
                yield Unsupported(key, held.sources, why, fix)
        else:
            group = next((each for each in _LATER if key == each or key.startswith(f"{each}.")), "")
            if group and held.value not in ((), None):
                yield Unsupported(key, held.sources, by, _LATER[group])


def _keys(value: object) -> "tuple[str, ...]":
    return tuple(cast("dict[str, object]", value)) if isinstance(value, dict) else ()
