"""Providers: one module or package each, found by name through the registry and imported only when used."""

__all__: list[str] = []
