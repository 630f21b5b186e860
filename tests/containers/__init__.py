"""Real container engines for tests, and what their images are made of."""

__all__: list[str] = []
