"""What the operator and the project ask for."""

__all__: list[str] = []
