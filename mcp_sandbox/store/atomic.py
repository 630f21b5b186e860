"""Files that change whole or not at all, and locks that end with their holder, for whoever works above the store."""

from mcp_sandbox.hostfs.atomic import (
    UNFINISHED,
    alocked,
    locked,
    sweep_unfinished,
    sync_directory,
    write_atomically,
    write_once,
)
from mcp_sandbox.hostfs.settling import Settle, Settler, settle_now

__all__ = [
    "UNFINISHED",
    "Settle",
    "Settler",
    "alocked",
    "locked",
    "settle_now",
    "sweep_unfinished",
    "sync_directory",
    "write_atomically",
    "write_once",
]
