"""Images as `docker save` and the OCI layout keep them in a tar archive: layers, each with what it takes away."""

import json
import platform
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, cast

from mcp_sandbox.hostfs.archives import members, opened_tar, unpacked
from mcp_sandbox.hostfs.tree_sources import copy_tar
from mcp_sandbox.hostfs.tree_writer import Bounds, TreeWriter, refusal

__all__ = ["DockerArchive", "copy_layers", "find_docker_archive"]

_INDEXES: Final = ("manifest.json", "index.json")
_JSON_BYTES_MAX: Final = 1 << 20
_LAYERS_MAX: Final = 500
MEMBERS_MAX: Final = 10_000
"""Beside layers there are few. All are held in memory, so a tree that happens to have such a file is read as one."""
_REMOVED: Final = ".wh."
_EMPTIED: Final = ".wh..wh..opq"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerArchive:
    """One image in an archive."""

    layers: Sequence[str]
    """Members, from the bottom up."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """What its programs expect."""


def find_docker_archive(file: IO[bytes]) -> DockerArchive | None:
    """Return what an uncompressed tar archive holds as an image in layers; `None` if it is a plain tree."""
    found: set[str] = set()
    count = 0
    for member in members(opened_tar(file)):
        count += 1
        found |= {member.name.removeprefix("./")} & {*_INDEXES}
    if not found or count > MEMBERS_MAX:
        return None
    archive = opened_tar(file)
    names = {name.removeprefix("./") for name in archive.getnames()}
    image = _saved(archive) if "manifest.json" in found else _layout(archive)
    return image if image is not None and names.issuperset(image.layers) else None


def copy_layers(
    file: IO[bytes], image: DockerArchive, writer: TreeWriter, left_out: Counter[str], scratch: Path, bounds: Bounds
) -> None:
    """Unpack the layers one upon the other."""
    archive = opened_tar(file)
    for name in image.layers:
        content = archive.extractfile(_member(archive, name))
        if content is None:
            raise refusal(f"layer {name!r} is no file")
        with unpacked(content, scratch, bounds) as layer:
            for member in members(opened_tar(layer)):  # all of them first: what this layer brings itself stays
                directory, _, base = member.name.rpartition("/")
                if base == _EMPTIED:
                    writer.clear(directory or ".")
                elif base.startswith(_REMOVED) and base != _REMOVED:
                    writer.remove(f"{directory or '.'}/{base.removeprefix(_REMOVED)}")
            copy_tar(layer, writer, left_out, passes_over=_takes_away)


def _takes_away(member: tarfile.TarInfo) -> bool:
    return member.name.rpartition("/")[2].startswith(_REMOVED)


def _saved(archive: tarfile.TarFile) -> DockerArchive | None:
    """Read `manifest.json`, as `docker save` writes it."""
    described = _json(archive, "manifest.json")
    images = _list(described)
    image = _object(images[0]) if images else {}
    if "Layers" not in image:
        return None
    if len(images) > 1:
        raise refusal(f"it holds {len(images)} images", "Save one image: docker save NAME -o FILE")
    return _image(archive, [str(layer) for layer in _list(image["Layers"])], str(image.get("Config", "")))


def _layout(archive: tarfile.TarFile) -> DockerArchive | None:
    """Read `index.json`, as the OCI image layout has it; of several platforms, this machine's."""
    described = _object(_json(archive, "index.json"))
    for _ in range(3):  # an index may name an index
        if "manifests" not in described:
            break
        described = _object(_json(archive, _blob(_chosen(_list(described["manifests"])))))
    if "layers" not in described:
        return None
    return _image(archive, [_blob(layer) for layer in _list(described["layers"])], _blob(described.get("config")))


def _chosen(manifests: list[Any]) -> dict[str, Any]:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    fitting = [
        one for one in manifests if _object(_object(one).get("platform")).get("architecture", machine) == machine
    ]
    if not fitting:
        raise refusal(f"it holds no image for {machine}", "Save the image for this machine's platform")
    return fitting[0]


def _blob(descriptor: object) -> str:
    return f"blobs/{str(_object(descriptor).get('digest', '')).replace(':', '/')}"


def _image(archive: tarfile.TarFile, layers: list[str], config: str) -> DockerArchive:
    if len(layers) > _LAYERS_MAX:
        raise refusal(f"it has {len(layers)} layers")
    env: dict[str, str] = {}
    lines = _object(_object(_json(archive, config)).get("config")).get("Env")
    for line in _list(lines):
        name, _, value = str(line).partition("=")
        if name and "\0" not in f"{name}{value}":
            env[name] = value
    return DockerArchive(layers=layers, env=env)


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _member(archive: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    for spelling in (name, f"./{name}"):
        try:
            return archive.getmember(spelling)
        except KeyError:
            continue
    raise refusal(f"it has no member {name[:80]!r}, which it says it has")


def _json(archive: tarfile.TarFile, name: str) -> Any:
    member = _member(archive, name)
    content = archive.extractfile(member)
    if content is None or not 0 <= member.size <= _JSON_BYTES_MAX:
        raise refusal(f"its member {name[:80]!r} is no short file")
    return json.loads(content.read())
