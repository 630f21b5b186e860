"""The manifest: one definition of a sandbox that travels, and the layers that narrow it."""

__all__: list[str] = []
