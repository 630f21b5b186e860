"""How protocol messages reach the server: stdio today."""

__all__: list[str] = []
