"""Call Fencepost nodes over HTTP: `Client` for threads, `AsyncClient` for event loops.

    with Client("http://127.0.0.1:8420") as client:
        tx = client.send(signer=me, to=you, value_wei=wei("0.1ether"), request_id="order-7", wait="finished")

Read in this order: `types` (the parameters of `send`), `endpoints` (one method per API endpoint), `retry` (which calls are
repeated, and when), `sync_client` and `async_client` (the two transports), `errors`. Response types are the API's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.client import errors
from fencepost.client.amounts import wei
from fencepost.client.endpoints import CommandOptions
from fencepost.client.sync_client import Client
from fencepost.client.types import Milestone, SendParams
from fencepost.client.webhooks import verify_webhook
from fencepost.schemas.explanations import ClusterStatusOut, ExplanationOut
from fencepost.schemas.responses import (
    ChainFeesOut,
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
from fencepost.schemas.subscriptions import DeliveryAttemptOut, ReplayOut, SubscriptionOut

if TYPE_CHECKING:
    from fencepost.client.async_client import AsyncClient

__all__ = [
    "AsyncClient",
    "ChainFeesOut",
    "Client",
    "ClusterStatusOut",
    "CommandOptions",
    "CommandOut",
    "CompletionOut",
    "CompletionsOut",
    "DeliveryAttemptOut",
    "ExplanationOut",
    "Milestone",
    "NodeOut",
    "NonceOut",
    "NonceStatusOut",
    "NoncesOut",
    "ReplayOut",
    "SendParams",
    "SignerOut",
    "SubscriptionOut",
    "TxOut",
    "VersionOut",
    "errors",
    "verify_webhook",
    "wei",
]


def __getattr__(name: str) -> Any:
    """Import `AsyncClient` on first use, because it imports aiohttp."""
    if name == "AsyncClient":
        from fencepost.client.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(name)
