"""Images by what people give: a name, or a path of this machine, which is imported and gets a name."""

import hashlib
import re
from pathlib import Path
from typing import Final

from anyio import to_thread

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.image import ImageRequest, Recipe
from mcp_sandbox.core.provider import Provider

__all__ = ["existing", "image_name", "is_path", "recipe_of", "suggested_name"]

_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9.-]+")
"""In a name that every provider takes."""
_ENDINGS: Final = re.compile(r"\.(tar(\.(gz|xz|bz2|zst))?|tgz|txz|tzst)\Z")
_SUGGESTED_CHARACTERS: Final = 60
_PATHS: Final = ("/", "./", "../", "~")


async def image_name(provider: Provider, image: str) -> str:
    """Return the name of an image; a path is imported, if it changed since the last time.

    A path begins with `/`, `./`, `../` or `~`: names of container images have slashes in them, too.

    Only for what the operator gives: nobody inside a sandbox has a say in paths of the host.

    Raises:
        InvalidRequestError: Nothing is at the path, or it cannot be an image.
        UnsupportedError: The provider takes no images.
    """
    if not is_path(image):
        return image
    source = await to_thread.run_sync(existing, image)
    name = f"{suggested_name(source).lower()}-{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"
    return (await provider.add_image(ImageRequest(name=name, source=str(source)))).name


def is_path(image: str) -> bool:
    """Whether what somebody gives is the path of an image, and no name."""
    return image.startswith(_PATHS)


def existing(path: str) -> Path:
    """Return the real path of a directory or file. Blocks.

    Raises:
        InvalidRequestError: There is none.
    """
    try:
        source = Path(path).expanduser().resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InvalidRequestError(
            f"No image from {path!r}",
            why=str(getattr(error, "strerror", None) or error),
            fix="Give the path of a directory with a root file system, or of an archive of one",
        ) from error
    if not (source.is_dir() or source.is_file()):
        raise InvalidRequestError(
            f"No image from {path!r}", why="it is neither a directory nor a file", fix="Write it to a file first"
        )
    return source


def suggested_name(source: Path) -> str:
    """Return what an image from a path can be called."""
    plain = _UNUSUAL.sub("-", _ENDINGS.sub("", source.name)).strip("-.")
    return plain[:_SUGGESTED_CHARACTERS] or "image"


def recipe_of(system: str, packages: str, mirror: str) -> Recipe:
    """Return the recipe for `debian:bookworm` and packages between commas."""
    distribution, _, suite = system.partition(":")
    names = {name.strip() for name in packages.split(",") if name.strip()}
    return Recipe(distribution=distribution, suite=suite, packages=tuple(sorted(names)), mirror=mirror)
