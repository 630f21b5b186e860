"""The guest agent: a static C program that is launcher, init and bridge of local sandboxes, and its protocol."""

__all__: list[str] = []
