"""From the bytes of a manifest to its model, or to all that is wrong with it, by key and line."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, cast, get_args

from pydantic import BaseModel, ValidationError

from mcp_sandbox.manifest.model import Manifest
from mcp_sandbox.manifest.problems import ManifestError, Problem
from mcp_sandbox.manifest.yaml_tree import Place, YamlTree, read_yaml

__all__ = ["ReadManifest", "dotted", "parse_manifest"]

_MOST_PROBLEMS: Final = 50
_FOREIGN: Final = {
    "mounts": "nothing of the machine comes in but the project",
    "volumes": "nothing of the machine comes in but the project",
    "endpoint": "where engines and services are is never in a manifest",
    "alerts": "who is told of what is never in a manifest",
    "audit": "what is recorded is never in a manifest",
}
"""Keys that people try, and why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadManifest:
    """A manifest that was understood."""

    manifest: Manifest
    tree: YamlTree
    digest: str
    """Hex SHA-256 of its bytes."""


def parse_manifest(data: bytes, name: str) -> ReadManifest:
    """Return what a manifest says.

    Args:
        data: The file.
        name: What it is called, for errors.

    Raises:
        ManifestError: It cannot be used; names every key that is wrong, and its line.
    """
    tree = read_yaml(data, name)
    found: object = tree.value
    if not isinstance(found, dict):
        what = "it is empty" if found is None else "a manifest is a group of keys, such as `name: ...`"
        raise ManifestError(name, [Problem(tree.line(()), "", what)])
    try:
        manifest = Manifest.model_validate(cast("object", found))
    except ValidationError as error:
        problems = [_problem(tree, each) for each in error.errors(include_url=False)[:_MOST_PROBLEMS]]
        raise ManifestError(name, sorted(set(problems), key=lambda each: (each.line, each.key))) from None
    return ReadManifest(manifest=manifest, tree=tree, digest=hashlib.sha256(data).hexdigest())


def dotted(place: Place) -> str:
    """Return a place as it is written: `capabilities.network.allowed[2].host`."""
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return shown.removeprefix(".")


def _problem(tree: YamlTree, error: Mapping[str, Any]) -> Problem:
    place: Place = tuple(part for part in error["loc"] if part != "[key]")
    line = tree.line(place)
    match error["type"]:
        case "extra_forbidden":
            return Problem(line, dotted(place), _unknown(place))
        case "missing":
            return Problem(line, dotted(place[:-1]), f"`{place[-1]}` is missing")
        case "value_error":
            return Problem(line, dotted(place), str(error["msg"]).removeprefix("Value error, "))
        case "literal_error":
            return Problem(line, dotted(place), f"{error['input']!r:.80} is none of {error['ctx']['expected']}")
        case "model_type" | "model_attributes_type" | "mapping_type" | "dict_type":
            return Problem(line, dotted(place), "a group of keys is expected")
        case "tuple_type" | "list_type":
            return Problem(line, dotted(place), "a list is expected, one entry a line, each after `- `")
        case _:
            return Problem(line, dotted(place), str(error["msg"]))


def _unknown(place: Place) -> str:
    """Return what to say of a key that there is not."""
    key = str(place[-1])
    if key in _FOREIGN:
        return f"there is no such key: {_FOREIGN[key]}"
    known = _keys(_model_at(place[:-1]))
    if near := get_close_matches(key, known, n=1, cutoff=0.6):
        return f"there is no such key; did you mean `{near[0]}`?"
    if elsewhere := [path for path in _all_keys(Manifest, "") if path.rpartition(".")[2] == key]:
        return f"there is no such key here; did you mean `{elsewhere[0]}`?"
    if near := get_close_matches(key, {path.rpartition(".")[2]: path for path in _all_keys(Manifest, "")}, 1, 0.8):
        return f"there is no such key; did you mean `{near[0]}`?"
    return f"there is no such key; here there may be {', '.join(known)}"


def _keys(model: type[BaseModel] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def _model_at(place: Place) -> type[BaseModel] | None:
    """Return the model whose keys are at a place."""
    annotation: Any = Manifest
    for part in place:
        model = next(_models(annotation), None)
        if model is None:
            return None
        fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        annotation = model if _is_collection(annotation) else fields.get(str(part))
    return next(_models(annotation), None)


def _is_collection(annotation: Any) -> bool:
    return any(getattr(each, "__origin__", None) in (tuple, Mapping) for each in (annotation, *get_args(annotation)))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for each in get_args(annotation):
            yield from _models(each)


def _all_keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        yield key
        for inner in _models(field.annotation):
            yield from _all_keys(inner, f"{key}.")
