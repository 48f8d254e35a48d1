"""Serve the REST API and `/rpc`: routing, authentication, parsing, handlers and problems.

Read in this order: `operations` (the table of operations), `pipeline` (the steps of a request), then one module per
subject. The package uses the use cases and the ports; their implementations come in as `Dependencies`.

    request → app → router → pipeline: auth (identity and scopes) → parsing (query and body)
            → submission | transactions | commands | signers | nonces | system → response or problem

The client shares the schema types with the server. Names are therefore imported on first access: a program that only
calls the API does not load the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.api.app import create_app
    from fencepost.api.auth import require_keys
    from fencepost.api.dependencies import Dependencies, NodeInfo

__all__ = ["Dependencies", "NodeInfo", "create_app", "require_keys"]

_MODULES = {
    "NodeInfo": "dependencies",
    "Dependencies": "dependencies",
    "create_app": "app",
    "require_keys": "auth",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
