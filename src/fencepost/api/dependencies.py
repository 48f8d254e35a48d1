"""Define what the API needs from the rest of the node, as values and functions. `bootstrap` provides it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

from fencepost.application.accept import RequestAcceptor
from fencepost.application.api_keys import KeyStore
from fencepost.application.explain_facts import Explainer
from fencepost.application.fee_sources import FeeSources
from fencepost.application.forwarding import Forwarder, ForwardTokens
from fencepost.application.membership import NodeView
from fencepost.application.ports import Chain, CommandStore
from fencepost.application.queries import Reader
from fencepost.application.spending_policy import SpendingGuard
from fencepost.application.tx_waiter import TxWaiter
from fencepost.domain.ids import Address, Signer
from fencepost.events.reader import EventReader
from fencepost.events.subscriptions import SubscriptionStore
from fencepost.events.webhooks import Answer, Send
from fencepost.nonce.port import NonceAllocator


class EncodeCall(Protocol):
    def __call__(self, *, method: str, abi: Sequence[Any] | None, args: Sequence[Any]) -> bytes:
        """Encode a call; raise `InvalidRequest` with the field `method`, `abi` or `args…`."""
        ...


class EncodeConstructor(Protocol):
    def __call__(self, *, abi: Sequence[Any], args: Sequence[Any]) -> bytes: ...


class CallEndpoint(Protocol):
    async def __call__(
        self, chain_id: int, method: str, params: Sequence[Any], *, bytes_max: int
    ) -> msgspec.Raw:
        """Return the response of an endpoint of the chain, undecoded.

        Raises `RpcRefused` with the endpoint's error, or if the response is larger than `bytes_max`; `RpcUnavailable`
        without a response.
        """
        ...


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """This node: its identity, and what it knows about its own state."""

    name: str
    incarnation: UUID
    version: str
    started_at: datetime
    is_database_failure: Callable[[BaseException], bool]  # the database is unavailable or slow
    metrics: Callable[[], bytes] = bytes  # in the Prometheus text format


@dataclass(frozen=True, slots=True)
class SignerSettings:
    """The settings of a signer's lane."""

    mode: Literal["strict", "pipelined"]
    max_in_flight: int


async def _no_endpoint(_url: str, _headers: dict[str, str], _body: bytes) -> Answer:
    return Answer(None, "this node sends no webhooks")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The bounds of subscriptions, and the function that sends a test event."""

    max_per_key: int = 20
    allow_private: bool = False
    secret_overlap_s: float = 86_400.0
    send: Send = _no_endpoint


@dataclass(frozen=True, slots=True)
class Signers:
    """The signers of this node."""

    addresses: Callable[[], Sequence[Address]]  # of the signers whose keys this node has
    holds: Callable[[Signer], bool]  # whether this node holds the signer's lease, as far as it knows
    settings: Callable[[Address], SignerSettings]


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of this node."""

    by_id: Mapping[int, Chain]
    default_id: int
    call_endpoint: CallEndpoint  # sends a caller's JSON-RPC call to an endpoint of the chain
    fee_sources: Mapping[int, FeeSources] = field(default_factory=dict)  # by chain id


@dataclass(frozen=True, slots=True)
class Codec:
    """Functions that read and write the values of EVM chains."""

    parse_address: Callable[[str], Address]  # raises ValueError, for a wrong checksum too
    encode_call: EncodeCall
    encode_constructor: EncodeConstructor
    selector_of: Callable[[str], bytes | None]  # of a function signature; None if it is invalid
    sender_of: Callable[[bytes], Address]  # the signer of a raw transaction; raises ValueError


@dataclass(frozen=True, slots=True)
class Cluster:
    """The other nodes, and how requests reach them."""

    nodes: Callable[[], Awaitable[Sequence[NodeView]]]
    url_of: Callable[[str], Awaitable[str | None]]  # the API URL of a live node, by its name
    forward_tokens: ForwardTokens | None = None  # None: this node accepts no forwarded requests
    forward: Forwarder | None = None  # None: requests for other nodes' signers are rejected with `not_leader`


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The settings that the API itself uses or shows."""

    host: str  # the address that the API listens on
    auth: Literal["open", "required"]  # open: on loopback, no key is required until one exists
    max_waits_per_key: int  # requests of one API key that may wait at this node
    max_streams_per_key: int  # event streams of one API key that may be open at this node
    expose_nonce: bool
    events: str  # how callers learn of ended transactions
    accepting_nodes: Literal["any", "leader"]
    lease_duration_s: float
    required_confirmations: int | str
    ready_needs_chain: bool = False  # a silent chain makes the node unready


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the API uses: use cases, stores, and the groups above."""

    acceptor: RequestAcceptor
    tx_waiter: TxWaiter
    reader: Reader
    events_log: EventReader
    subscriptions: SubscriptionStore
    explainer: Explainer
    commands: CommandStore
    keys: KeyStore
    spending: SpendingGuard
    node: NodeInfo
    signers: Signers
    chains: Chains
    codec: Codec
    cluster: Cluster
    settings: ApiSettings
    webhooks: WebhookSettings = WebhookSettings()
    nonces: NonceAllocator | None = None  # None: the nonce service is off
