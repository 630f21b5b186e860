"""What outlives a process: the registry of sandboxes and the records of snapshots. No engine, no wire format."""

__all__: list[str] = []
