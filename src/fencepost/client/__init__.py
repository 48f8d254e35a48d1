"""The Python SDK: `Client` and `AsyncClient` speak to nodes over HTTP.

    with Client("http://127.0.0.1:8420") as client:
        tx = client.send(signer=me, to=you, value_wei=wei("0.1ether"), request_id="order-7", wait="confirmed")

Read in this order: `asked` (what can be sent), `calls` (what can be asked, as steps), `exchange` (what is repeated, and
when), `blocking` and `awaited` (the two ways to walk the steps), `errors`. The types of answers are the API's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.api.wire_out import (
    CommandOut,
    CompletionOut,
    CompletionsOut,
    NodeOut,
    NonceOut,
    NoncesOut,
    NonceStatusOut,
    SignerOut,
    TxOut,
    VersionOut,
)
from fencepost.client import errors
from fencepost.client.amounts import wei
from fencepost.client.asked import Asked, Until
from fencepost.client.blocking import Client
from fencepost.client.calls import Why

if TYPE_CHECKING:
    from fencepost.client.awaited import AsyncClient

__all__ = [
    "Asked",
    "AsyncClient",
    "Client",
    "CommandOut",
    "CompletionOut",
    "CompletionsOut",
    "NodeOut",
    "NonceOut",
    "NonceStatusOut",
    "NoncesOut",
    "SignerOut",
    "TxOut",
    "Until",
    "VersionOut",
    "Why",
    "errors",
    "wei",
]


def __getattr__(name: str) -> Any:
    """`AsyncClient` brings aiohttp with it, so it is imported when somebody asks for it."""
    if name == "AsyncClient":
        from fencepost.client.awaited import AsyncClient

        return AsyncClient
    raise AttributeError(name)
