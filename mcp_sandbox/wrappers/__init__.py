"""Wrappers: one concern each around a provider, itself a provider."""

__all__: list[str] = []
