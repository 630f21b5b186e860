"""What a sandbox can start from instead of the provider's default, under a name."""

from dataclasses import dataclass

__all__ = ["Image", "ImageRequest", "Recipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image to build from a distribution's packages."""

    distribution: str
    suite: str
    packages: tuple[str, ...] = ()
    """Beside the smallest system; sorted."""
    mirror: str = ""
    """URL of the archive; empty is the distribution's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """An image to add: from a file or directory of the host, or from packages. Only the operator may ask for one."""

    name: str
    """Another image that has it loses it."""
    source: str | None = None
    """Absolute path of a directory or of an archive."""
    recipe: Recipe | None = None
    fresh: bool = False
    """Whether to do the work even if the provider has what the same request made before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that a provider has."""

    name: str
    created_at: str
    """UTC, ISO 8601."""
    size_bytes: int
    origin: str
    """Where it came from, for a reader."""
    content: str
    """Names with the same content are the same image."""
    notes: tuple[str, ...] = ()
    """What was not taken over, or how it was made, for whoever added it just now."""
