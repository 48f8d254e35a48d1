"""Everything that the door needs from behind it, as values and functions. Whoever wires a node fills it in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from fencepost.application.accept import Accept
from fencepost.application.api_keys import KeyStore
from fencepost.application.forwarding import Forward, Passes
from fencepost.application.membership import NodeView
from fencepost.application.operate import Operate
from fencepost.application.policy import PolicyGuard
from fencepost.application.ports import Chain
from fencepost.application.read import Reader
from fencepost.application.waiting import Waiting
from fencepost.domain.ids import Address, Signer
from fencepost.nonce.port import NonceDesk


class EncodeCall(Protocol):
    def __call__(self, *, method: str, abi: Sequence[Any] | None, args: Sequence[Any]) -> bytes:
        """Raises `InvalidRequest` with the field `method`, `abi` or `args…`."""
        ...


class EncodeConstructor(Protocol):
    def __call__(self, *, abi: Sequence[Any], args: Sequence[Any]) -> bytes: ...


class PassOn(Protocol):
    async def __call__(self, chain_id: int, method: str, params: Sequence[Any]) -> Any:
        """What a node of the chain answers. Raises `RpcRefused` with its error, `RpcUnavailable` without an answer."""
        ...


@dataclass(frozen=True, slots=True)
class NodeInfo:
    name: str
    incarnation: UUID
    version: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class SignerRules:
    """How a signer is worked for, by the settings."""

    mode: Literal["strict", "pipelined"]
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class Services:
    accept: Accept
    waiting: Waiting
    reader: Reader
    nodes: Callable[[], Awaitable[Sequence[NodeView]]]
    operate: Operate
    keys: KeyStore
    policy: PolicyGuard
    node: NodeInfo
    chains: Mapping[int, Chain]
    default_chain_id: int
    addresses: Callable[[], Sequence[Address]]  # whose keys this node holds
    holds: Callable[[Signer], bool]  # whether this node has the signer's lease, as far as it knows
    rules_of: Callable[[Address], SignerRules]
    parse_address: Callable[[str], Address]  # raises ValueError, for a wrong checksum too
    encode_call: EncodeCall
    encode_constructor: EncodeConstructor
    selector_of: Callable[[str], bytes | None]  # of a signature; None when it is none
    pass_on: PassOn  # a caller's own call to the chain's node
    sender_of: Callable[[bytes], Address]  # who signed a raw transaction; raises ValueError
    is_database_failure: Callable[[BaseException], bool]  # the database is away or busy, not wrong
    host: str  # the address that the door listens on
    expose_nonce: bool
    events: str  # how callers learn that something ended
    intake: Literal["any", "leader"]
    lease_duration_s: float
    required_confirmations: int | str
    metrics: Callable[[], bytes] = bytes  # the node's figures, as Prometheus reads them
    nonces: NonceDesk | None = None  # None: the nonce service is off
    passes: Passes | None = None  # None: no node hands calls on to this one
    forward: Forward | None = None  # None: callers are told the owner, and go there themselves
