"""Tests of images: what a sandbox can start from instead of the host's programs."""

__all__: list[str] = []
