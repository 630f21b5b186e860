"""Safe work on the host's own file system, for whoever must touch it."""

__all__: list[str] = []
