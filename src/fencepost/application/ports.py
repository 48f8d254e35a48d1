"""The ports: what the use cases need from the world, and nothing more.

Each has a real adapter and a fake, and one contract suite runs over both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fencepost.domain.ids import Address, BlockHash, TxHash
from fencepost.domain.send import SendResult
from fencepost.domain.transaction import Call, Fees, SignedTx, UnsignedTx

BlockTag = Literal["latest", "pending", "safe", "finalized"]


@dataclass(frozen=True, slots=True)
class Header:
    number: int
    hash: BlockHash
    parent_hash: BlockHash
    base_fee_wei: int | None
    timestamp_s: int


@dataclass(frozen=True, slots=True)
class Block:
    header: Header
    tx_hashes: tuple[TxHash, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    tx_hash: TxHash
    block_number: int
    block_hash: BlockHash
    succeeded: bool
    gas_used: int
    raw: Mapping[str, Any]  # as the node gave it


class Chain(Protocol):
    """One chain, through whichever nodes are configured for it.

    Reads raise `RpcUnavailable` when there was no answer and `RpcRefused` when a node answered with an error. `send`
    never raises for what a node says or fails to say: a result is a value, and no answer is `UNKNOWN`. Nothing here
    retries a send.
    """

    @property
    def chain_id(self) -> int: ...

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]: ...

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int: ...

    async def balance_wei(self, address: Address) -> int: ...

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]: ...

    async def knows(self, hashes: Sequence[TxHash]) -> Sequence[bool]:
        """Whether the node has the transaction at all, pending or mined."""
        ...

    async def head(self, tag: BlockTag = "latest") -> Header: ...

    async def block(self, number: int) -> Block | None: ...

    async def estimate_gas(self, sender: Address, call: Call) -> int:
        """Raises `WouldRevert` with the decoded reason."""
        ...

    async def quote_fees(self) -> Fees:
        """What the node suggests for the next blocks; the fee cap leaves room for the base fee to double."""
        ...

    async def revert_reason(self, tx_hash: TxHash) -> str | None:
        """Why a mined transaction reverted, decoded, if the node still can tell."""
        ...


class KeyPort(Protocol):
    """Who signs. Signatures are deterministic: the same transaction gives the same bytes."""

    def addresses(self) -> Sequence[Address]: ...

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        """All or nothing; raises `SigningError`, or `UnknownSigner` when the key isn't held here."""
        ...
