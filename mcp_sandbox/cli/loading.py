"""Loading the real server, and of the SDK only what it needs."""

import sys
from importlib.util import find_spec, module_from_spec

__all__ = ["load_real_server"]


def load_real_server() -> None:
    """Import `mcp_sandbox.cli.serving`.

    The packages of the SDK import its client, its other server and their web frameworks, a sixth of the time. Here
    they do so when something of theirs is asked for, which nobody does.
    """
    for package in ("mcp", "mcp.server"):
        _postpone(package)
    __import__("mcp_sandbox.cli.serving")


def _postpone(package: str) -> None:
    """Make the modules of a package importable without it. Its own code runs when an attribute of it is missed."""
    spec = find_spec(package)
    if package in sys.modules or spec is None or spec.loader is None:
        return
    loader, module = spec.loader, module_from_spec(spec)

    def load(attribute: str) -> object:
        del module.__dict__["__getattr__"]
        loader.exec_module(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = load
    sys.modules[package] = module
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)
