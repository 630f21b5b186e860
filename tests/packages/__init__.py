"""Package managers inside sandboxes, each from a mirror that the test brings along: nothing there has a network."""

__all__: list[str] = []
