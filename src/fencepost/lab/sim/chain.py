"""A chain in memory behind the `Chain` port.

It keeps geth's rules for the pool: one transaction a nonce, gaps allowed, a replacement at least 10 % dearer in both
prices, nothing below the account's nonce. Nothing is mined unless `mine()` or `reorg()` says so. Balances don't change
by themselves. `tests/contract` holds it to what a real node does.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple

from fencepost.application.ports import Block, BlockTag, Chain, Header
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, TxHash
from fencepost.domain.managed import Receipt
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.transaction import Call, Fees, SignedTx
from fencepost.errors import InsufficientFunds, RpcUnavailable, WouldRevert

GAS_OF_A_TRANSFER: Final = 21_000
BLOCK_TIME_S: Final = 12
BUMP_PERCENT_MIN: Final = 10
FINALITY_BLOCKS: Final = 2
_NO_HASH: Final = BlockHash("0x" + "0" * 64)


class Decoded(NamedTuple):
    sender: Address
    nonce: int
    tip_wei: int
    fee_cap_wei: int


class Lost(Enum):
    """The answer to a send is lost: either the node never saw the bytes, or it took them first."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class _Tx:
    hash: TxHash
    sender: Address
    nonce: int
    tip_wei: int
    fee_cap_wei: int


@dataclass(frozen=True, slots=True)
class _Mined:
    header: Header
    txs: tuple[_Tx, ...] = ()
    nonces: dict[Address, int] = field(default_factory=dict)  # of every account, after this block


class FakeChain(Chain):
    """Public attributes are for whoever plays the world: read and set."""

    def __init__(
        self,
        decode: Callable[[bytes], tuple[Address, int, int, int]],
        *,
        chain_id: int = 31_337,
        base_fee_wei: int = 10**9,
        balance_wei: int = 10**21,
    ) -> None:
        self._decode = decode
        self._made = 0
        self._chain_id = chain_id
        self._balance_wei = balance_wei
        self._blocks = [_Mined(Header(0, self._new_hash("genesis"), _NO_HASH, base_fee_wei, 0))]
        self._pool: dict[TxHash, _Tx] = {}
        self._faults: deque[Lost | SendResult | None] = deque()
        self.base_fee_wei = base_fee_wei
        self.tip_wei = 10**9
        self.balances: dict[Address, int] = {}
        self.reverting: dict[TxHash, str] = {}  # mined as failed, with this reason
        self.reverting_calls: dict[Address | None, str] = {}  # estimates to this address fail
        self.nonce_lag_blocks = 0
        self.offline = False
        self.sent: list[SignedTx] = []  # everything that was handed in, lost or not

    # What a test does to the chain.

    def fault_next_sends(self, *faults: Lost | SendResult | None) -> None:
        """One for each transaction to come, None for none. A `SendResult` is answered without taking the bytes."""
        self._faults.extend(faults)

    def mine(self, blocks: int = 1, *, only: Collection[TxHash] | None = None) -> Block:
        """What can be mined is, in nonce order; with `only`, nothing else. Returns the last block."""
        for _ in range(blocks):
            self._mine_one(only)
        return self._block(self._blocks[-1])

    def reorg(self, depth: int, *, keep: Collection[TxHash] = ()) -> None:
        """The last `depth` blocks give way to `depth + 1` others.

        The kept transactions are in the first of those; the rest is back in the pool, and gone after `drop`.
        """
        if not 0 < depth < len(self._blocks):
            raise ValueError(f"{depth} blocks can't be reorganised out of {len(self._blocks) - 1}")
        gone = self._blocks[-depth:]
        del self._blocks[-depth:]
        for tx in (tx for mined in gone for tx in mined.txs):
            self._pool.setdefault(tx.hash, tx)
        included = set(self.mine(only=keep).tx_hashes)
        if included != set(keep):
            raise ValueError("a kept transaction can't be mined: it is unknown, or a lower nonce is missing")
        self.mine(depth, only=())

    def drop(self, tx_hash: TxHash) -> None:
        """The pool forgets it."""
        del self._pool[tx_hash]

    def stranger(self, sender: Address, *, nonce: int | None = None, fee_cap_wei: int = 10**12) -> TxHash:
        """Somebody else uses the key: into the pool, in place of whatever is there at that nonce."""
        at = self._pending_nonce(sender) if nonce is None else nonce
        tx = _Tx(TxHash(self._new_hash("stranger")), sender, at, fee_cap_wei, fee_cap_wei)
        if (rival := self._at(sender, at)) is not None:
            self.drop(rival.hash)
        self._pool[tx.hash] = tx
        return tx.hash

    @property
    def pool(self) -> frozenset[TxHash]:
        return frozenset(self._pool)

    def behind(self, blocks: int) -> FakeChain:
        """A node that has not seen the newest blocks: what they hold is pending there. What it takes, nobody else sees."""
        shown = max(1, len(self._blocks) - blocks)
        node = copy(self)
        node._blocks = self._blocks[:shown]  # noqa: SLF001 - one of us
        unseen = {tx.hash: tx for mined in self._blocks[shown:] for tx in mined.txs}
        node._pool = unseen | self._pool  # noqa: SLF001 - as above
        return node

    # What really stands, whatever a node says.

    @property
    def height(self) -> int:
        return len(self._blocks) - 1

    def newest(self, count: int) -> list[Header]:
        """The newest headers, the head first."""
        return [mined.header for mined in reversed(self._blocks[-count:])]

    def latest_nonce(self, address: Address) -> int:
        return self._blocks[-1].nonces.get(address, 0)

    def mineable(self, address: Address) -> list[TxHash]:
        """What the pool holds of this account without a gap below it."""
        nonces = range(self.latest_nonce(address), self._pending_nonce(address))
        return [tx.hash for tx in self._pool.values() if tx.sender == address and tx.nonce in nonces]

    def is_canonical(self, number: int, block_hash: BlockHash) -> bool:
        return 0 <= number < len(self._blocks) and self._blocks[number].header.hash == block_hash

    def mined_in_newest(self, depth: int) -> list[tuple[TxHash, Address, int]]:
        """In the last `depth` blocks, in order: hash, sender, nonce."""
        return [(tx.hash, tx.sender, tx.nonce) for mined in self._blocks[-depth:] for tx in mined.txs]

    def mined_by(self, hashes: Collection[TxHash]) -> list[tuple[Address, int]]:
        """Sender and nonce of those of these transactions that are in a block."""
        return [(tx.sender, tx.nonce) for mined in self._blocks for tx in mined.txs if tx.hash in hashes]

    def canonical(self) -> list[tuple[Header, list[tuple[TxHash, Address, int]]]]:
        return [(m.header, [(tx.hash, tx.sender, tx.nonce) for tx in m.txs]) for m in self._blocks]

    # The port.

    @property
    def chain_id(self) -> int:
        return self._chain_id

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        return [self._send_one(tx) for tx in txs]

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int:
        self._reachable()
        seen = self._blocks[max(len(self._blocks) - 1 - self.nonce_lag_blocks, 0)]
        latest = seen.nonces.get(address, 0)
        return latest if tag == "latest" else self._pending_nonce(address, latest)

    async def balance_wei(self, address: Address) -> int:
        self._reachable()
        return self.balances.get(address, self._balance_wei)

    async def receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        self._reachable()
        return [self._receipt(tx_hash) for tx_hash in hashes]

    async def receipts_and_head(self, hashes: Sequence[TxHash]) -> tuple[Sequence[Receipt | None], Header]:
        return await self.receipts(hashes), await self.head()

    async def knows(self, hashes: Sequence[TxHash]) -> Sequence[bool]:
        self._reachable()
        return [tx_hash in self._pool or self._receipt(tx_hash) is not None for tx_hash in hashes]

    async def head(self, tag: BlockTag = "latest") -> Header:
        self._reachable()
        latest = self._blocks[-1].header
        if tag == "latest":
            return latest
        if tag == "pending":
            return Header(
                latest.number + 1, _NO_HASH, latest.hash, self.base_fee_wei, latest.timestamp_s + BLOCK_TIME_S
            )
        return self._blocks[max(latest.number - FINALITY_BLOCKS, 0)].header

    async def block(self, number: int) -> Block | None:
        self._reachable()
        return self._block(self._blocks[number]) if 0 <= number < len(self._blocks) else None

    async def block_receipts(self, number: int) -> Sequence[Receipt] | None:
        block = await self.block(number)
        if block is None:
            return None
        return [receipt for tx_hash in block.tx_hashes if (receipt := self._receipt(tx_hash)) is not None]

    async def estimate_gas(self, sender: Address, call: Call) -> int:
        if await self.balance_wei(sender) < call.value_wei:
            raise InsufficientFunds("insufficient funds for transfer")
        if call.to in self.reverting_calls:
            raise WouldRevert(self.reverting_calls[call.to])
        return GAS_OF_A_TRANSFER

    async def quote_fees(self) -> Fees:
        self._reachable()
        return Fees(fee_cap_wei=2 * self.base_fee_wei + self.tip_wei, tip_wei=self.tip_wei)

    async def revert_reason(self, tx_hash: TxHash) -> str | None:
        self._reachable()
        return self.reverting.get(tx_hash) if self._receipt(tx_hash) is not None else None

    # How it works.

    def _reachable(self) -> None:
        if self.offline:
            raise RpcUnavailable("fake: no answer")

    def _send_one(self, tx: SignedTx) -> SendResult:
        self.sent.append(tx)
        fault = self._faults.popleft() if self._faults else None
        if isinstance(fault, SendResult):
            return fault
        if self.offline or fault is Lost.BEFORE:
            return SendResult(SendCategory.UNKNOWN, "fake: time-out")
        result = self._take(tx)
        return SendResult(SendCategory.UNKNOWN, "fake: time-out") if fault is Lost.AFTER else result

    def _take(self, signed: SignedTx) -> SendResult:
        tx = _Tx(signed.hash, *self._decode(signed.raw))
        next_nonce = self._blocks[-1].nonces.get(tx.sender, 0)
        if tx.hash in self._pool:
            return SendResult(SendCategory.ALREADY_KNOWN, "already known")
        if tx.nonce < next_nonce:
            message = f"nonce too low: next nonce {next_nonce}, tx nonce {tx.nonce}"
            return SendResult(SendCategory.NONCE_TOO_LOW, message, chain_nonce=next_nonce)
        if (refusal := self._unpayable(tx)) is not None:
            return refusal
        rival = self._at(tx.sender, tx.nonce)
        if rival is not None:
            if not _replaces(tx, rival):
                return SendResult(SendCategory.REPLACEMENT_UNDERPRICED, "replacement transaction underpriced")
            self.drop(rival.hash)
        self._pool[tx.hash] = tx
        return SendResult(SendCategory.ACCEPTED, returned_hash=tx.hash)

    def _unpayable(self, tx: _Tx) -> SendResult | None:
        if tx.tip_wei > tx.fee_cap_wei:
            return SendResult(SendCategory.FATAL, "max priority fee per gas higher than max fee per gas")
        if tx.fee_cap_wei < self.base_fee_wei:
            return SendResult(SendCategory.UNDERPRICED, "max fee per gas less than block base fee")
        if self.balances.get(tx.sender, self._balance_wei) < tx.fee_cap_wei * GAS_OF_A_TRANSFER:
            return SendResult(SendCategory.INSUFFICIENT_FUNDS, "insufficient funds for gas * price + value")
        return None

    def _mine_one(self, only: Collection[TxHash] | None) -> None:
        parent = self._blocks[-1]
        nonces = dict(parent.nonces)
        included: list[_Tx] = []
        for tx in sorted(self._pool.values(), key=lambda tx: tx.nonce):
            wanted = only is None or tx.hash in only
            if wanted and tx.nonce == nonces.get(tx.sender, 0) and tx.fee_cap_wei >= self.base_fee_wei:
                nonces[tx.sender] = tx.nonce + 1
                included.append(tx)
        # What lost its nonce to another transaction can never be mined, and a node lets go of it.
        self._pool = {
            key: tx
            for key, tx in self._pool.items()
            if tx not in included and tx.nonce >= nonces.get(tx.sender, 0)
        }
        header = Header(
            number=parent.header.number + 1,
            hash=self._new_hash("block"),
            parent_hash=parent.header.hash,
            base_fee_wei=self.base_fee_wei,
            timestamp_s=parent.header.timestamp_s + BLOCK_TIME_S,
        )
        self._blocks.append(_Mined(header, tuple(included), nonces))

    def _pending_nonce(self, sender: Address, latest: int | None = None) -> int:
        nonce = self._blocks[-1].nonces.get(sender, 0) if latest is None else latest
        while self._at(sender, nonce) is not None:  # bounded by the size of the pool
            nonce += 1
        return nonce

    def _at(self, sender: Address, nonce: int) -> _Tx | None:
        return next((tx for tx in self._pool.values() if (tx.sender, tx.nonce) == (sender, nonce)), None)

    def _receipt(self, tx_hash: TxHash) -> Receipt | None:
        for mined in reversed(self._blocks):
            if any(tx.hash == tx_hash for tx in mined.txs):
                succeeded = tx_hash not in self.reverting
                raw = {"transactionHash": tx_hash, "status": "0x1" if succeeded else "0x0"}
                block = BlockRef(mined.header.number, mined.header.hash)
                return Receipt(tx_hash, block, succeeded, GAS_OF_A_TRANSFER, raw)
        return None

    def _block(self, mined: _Mined) -> Block:
        return Block(mined.header, tuple(tx.hash for tx in mined.txs))

    def _new_hash(self, kind: str) -> BlockHash:
        self._made += 1
        return BlockHash("0x" + hashlib.sha256(f"{kind} {self._made}".encode()).hexdigest())


def _replaces(tx: _Tx, rival: _Tx) -> bool:
    return all(
        100 * new >= (100 + BUMP_PERCENT_MIN) * old
        for new, old in ((tx.tip_wei, rival.tip_wei), (tx.fee_cap_wei, rival.fee_cap_wei))
    )
