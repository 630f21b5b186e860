"""Mechanics that several providers share; they know no provider."""

__all__: list[str] = []
