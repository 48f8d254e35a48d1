"""The front door over HTTP. Read in this order: `operations` (what there is), `answering` (how a call goes through),
then one module a subject. It knows the use cases and the ports; what stands behind them comes in as `Services`.

    request → direct | app (which operation) → answering: gate (who is it, may it) → bodies (is it well-formed)
            → submit | look | people | system → problem or answer

The client shares the wire types with the server. Names are therefore loaded when they are asked for: a program that
only calls the API does not load what serves it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.api.app import create_app
    from fencepost.api.gate import require_keys
    from fencepost.api.services import NodeInfo, Services

__all__ = ["NodeInfo", "Services", "create_app", "require_keys"]

_HOMES = {"NodeInfo": "services", "Services": "services", "create_app": "app", "require_keys": "gate"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
