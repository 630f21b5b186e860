"""What we use of the `docker` SDK's client, with types: the SDK has none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["EngineApi"]

Answer = dict[str, Any]


class EngineApi(Protocol):
    """`docker.APIClient`: every method blocks, and raises what the SDK raises; parameters are those of the API."""

    @property
    def api_version(self) -> str:
        """Of the engine, as negotiated."""
        ...

    def close(self) -> None:
        """Close idle connections."""
        ...

    def info(self) -> Answer:
        """Return `/info`."""
        ...

    def version(self) -> Answer:
        """Return `/version`."""
        ...

    def create_container_from_config(self, config: Mapping[str, Any], name: str) -> Answer:
        """Make a container."""
        ...

    def put_archive(self, container: str, path: str, data: Iterable[bytes]) -> bool:
        """Unpack a tar stream in a container."""
        ...

    def get_archive(self, container: str, path: str) -> tuple[Iterator[bytes], Answer]:
        """Pack a path of a container."""
        ...

    def start(self, container: str) -> None:
        """Start a container; no-op if it runs."""
        ...

    def inspect_container(self, container: str) -> Answer:
        """Return everything about a container."""
        ...

    def containers(self, *, all: bool, filters: Mapping[str, Sequence[str]]) -> list[Answer]:
        """List containers."""
        ...

    def kill(self, container: str) -> None:
        """Kill what runs in a container."""
        ...

    def remove_container(self, container: str, *, v: bool, force: bool) -> None:
        """Kill and remove a container with its nameless volumes."""
        ...

    def logs(self, container: str, *, tail: int) -> bytes:
        """Return what init said last."""
        ...

    def exec_create(self, container: str, cmd: Sequence[str], *, stdin: bool, user: str, workdir: str) -> Answer:
        """Prepare a program in a container."""
        ...

    def inspect_image(self, image: str) -> Answer:
        """Return everything about an image."""
        ...

    def images(self, name: str | None = None, *, filters: Mapping[str, object] | None = None) -> list[Answer]:
        """List the images of a repository, or those that filters choose."""
        ...

    def remove_image(self, image: str) -> None:
        """Remove an image that nobody uses."""
        ...

    def tag(self, image: str, repository: str, tag: str, *, force: bool) -> bool:
        """Give an image another name."""
        ...

    def history(self, image: str) -> list[Answer]:
        """Return the layers of an image, the uppermost first."""
        ...

    def commit(self, container: str, repository: str, tag: str, *, pause: bool, changes: Sequence[str]) -> Answer:
        """Make an image from a container."""
        ...

    def export(self, container: str) -> Iterator[bytes]:
        """Pack everything in a container."""
        ...

    def import_image_from_data(self, data: Iterator[bytes], repository: str, *, changes: Sequence[str]) -> str:
        """Make an image of one layer from a tar stream; it may name a tag, which Podman takes only there."""
        ...

    def pull(self, repository: str, *, tag: str | None, stream: bool, decode: bool) -> Iterator[Answer]:
        """Pull an image and say how far that is."""
        ...
