"""What each key means, in the words of its field."""

from typing import Any, get_args

from pydantic import BaseModel

from mcp_sandbox.manifest.keys import kind_of
from mcp_sandbox.manifest.model import Manifest

__all__ = ["meaning"]


def meaning(key: str) -> str:
    """Return what a key means, and what a lower layer may do with it."""
    said = ""
    annotation: Any = Manifest
    for part in key.split("."):
        model = _model(annotation)
        field = model.model_fields.get(part) if model else None
        if field is None:
            break
        inside = _model(field.annotation)
        said = field.description or (inside.__doc__ if inside else model.__doc__ if model else "") or said
        annotation = field.annotation
    return f"{said.splitlines()[0].rstrip('.')}. Where several say it, {kind_of(key).value}."


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model(each)) is not None), None)
