"""Plain data and the border every provider implements. Imports nothing but the standard library and `anyio.abc`."""

__all__: list[str] = []
