"""Policy: what the operator allows, as pure rules and as the guard that applies them to every request."""

__all__: list[str] = []
