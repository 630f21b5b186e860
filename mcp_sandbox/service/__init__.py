"""Use cases, in terms of the border and the stores. No engine, no wire format."""

__all__: list[str] = []
