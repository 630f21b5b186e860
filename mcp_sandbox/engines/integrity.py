"""Whether all that a snapshot of the embedded engine is made of is there."""

from mcp_sandbox.core.errors import NotFoundError
from mcp_sandbox.engines.layer_store import VOLUMES, LayerStore

__all__ = ["faults"]


def faults(store: LayerStore, ref: str) -> list[str]:
    """Return what is missing of a snapshot. Blocks."""
    try:
        snapshot = store.load_snapshot(ref)
    except NotFoundError:
        return ["its list of layers is gone"]
    except (ValueError, KeyError, TypeError):
        return ["its list of layers cannot be read"]
    wanted = {f"layer {layer}": f"layers/{layer}/{volume}" for layer in snapshot.layers for volume in VOLUMES}
    wanted["what it stands on"] = f"base/{snapshot.base}/root"
    return [f"{what} is missing" for what, path in wanted.items() if not (store.root / path).is_dir()]
