"""Implement the `Chain` port in memory.

It follows geth's pool rules: one transaction per nonce, gaps allowed, a replacement must pay at least 10 % more in both
prices, no nonce below the account's. Blocks are mined only by `mine()` and `reorg()`. Transfers do not change balances.
`tests/contract` runs the same tests against it and a real node.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple

from fencepost.adapters.evm.encoding import decode_signed
from fencepost.application.ports import Block, BlockTag, Chain, EndpointReport, EndpointTrouble, Header
from fencepost.domain.attribution import MinedTx
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.fees import FeeQuote
from fencepost.domain.ids import Address, BlockHash, TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.transaction import Call, Fees, SignedTx
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import InsufficientFunds, RpcUnavailable, WouldRevert

TRANSFER_GAS: Final = 21_000
BLOCK_TIME_S: Final = 12
MIN_BUMP_PERCENT: Final = 10
FINALITY_BLOCKS: Final = 2
_LEGACY_FROM: Final = 0xC0  # the first byte of an RLP list: a transaction without a type byte
_NO_HASH: Final = BlockHash("0x" + "0" * 64)

# The call of a foreign transaction unless a test gives another: no request asks for it.
FOREIGN_CALL: Final = Call(to=Address("0x" + "57" * 20), value_wei=12_345_678)


class DecodedTx(NamedTuple):
    """What the chain must know of signed bytes."""

    sender: Address
    nonce: int
    tip_wei: int
    fee_cap_wei: int
    call: Call


def decode_tx(raw: bytes) -> DecodedTx:
    """Decode the bytes of a signed Ethereum transaction."""
    decoded = decode_signed(raw)
    tx = decoded.tx
    return DecodedTx(decoded.sender, tx.nonce, tx.fees.tip_wei, tx.fees.fee_cap_wei, tx.call)


class LostResponse(Enum):
    """Lose the answer to a send: before the endpoint saw the bytes, or after it accepted them."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class _Tx:
    hash: TxHash
    sender: Address
    nonce: int
    tip_wei: int
    fee_cap_wei: int
    call: Call
    raw: bytes | None = None  # None: the chain does not show its bytes


@dataclass(frozen=True, slots=True)
class _Mined:
    header: Header
    txs: tuple[_Tx, ...] = ()
    nonces: dict[Address, int] = field(default_factory=dict)  # of every account after this block


class InMemoryChain(Chain):
    """A chain without a network. Tests read and set its public attributes."""

    def __init__(
        self,
        decode: Callable[[bytes], tuple[Address, int, int, int, Call]] | None = None,
        *,
        chain_id: int = 31_337,
        base_fee_wei: int = 10**9,
        balance_wei: int = 10**21,
        salt: str = "",
    ) -> None:
        self._salt = salt  # chains with the same salt have the same hashes
        self.decode = self._decode = decode or decode_tx
        self._made = 0
        self._chain_id = chain_id
        self._balance_wei = balance_wei
        self._blocks = [_Mined(Header(0, self._new_hash("genesis"), _NO_HASH, base_fee_wei, 0))]
        self._pool: dict[TxHash, _Tx] = {}
        self._faults: deque[LostResponse | SendResult | None] = deque()
        self.base_fee_wei = base_fee_wei
        self.tip_wei = 10**9
        self.balances: dict[Address, int] = {}
        self.reverting: dict[TxHash, str] = {}  # mined as failed, with this revert reason
        self.reverting_calls: dict[Address | None, str] = {}  # gas estimates for calls to this address fail
        self.nonce_lag_blocks = 0
        self.keeps_state_blocks: int | None = None  # older states are pruned
        self.hides_bytes = False  # blocks are shown without signatures
        self.offline = False
        self.gas_limit: int | None = 30_000_000  # of every block
        self.held_back: set[TxHash] = set()  # the pool keeps these, and no block includes them
        self.blocks_are_full = False
        self.in_flight_max: int | None = None  # limit of a delegated account (EIP-7702)
        self.is_before_london = False  # headers without a base fee; only transactions of type 0 are accepted
        self.hides_that_it_is = False  # headers have a base fee all the same
        self.sent: list[SignedTx] = []  # every transaction that was sent, lost or not

    # ---- for tests

    def script_next_sends(self, *faults: LostResponse | SendResult | None) -> None:
        """Set the results of the next transactions, one each; None accepts or rejects as usual.

        A `SendResult` is returned without accepting the bytes.
        """
        self._faults.extend(faults)

    def mine(self, blocks: int = 1, *, only: Collection[TxHash] | None = None) -> Block:
        """Mine blocks with the executable transactions in nonce order, and return the last block.

        With `only`, no other transaction is included.
        """
        for _ in range(blocks):
            self._mine_one(only)
        return self._block(self._blocks[-1])

    def reorg(self, depth: int, *, keep: Collection[TxHash] = ()) -> None:
        """Replace the last `depth` blocks by `depth + 1` others.

        The first of them includes the transactions in `keep`; the others return to the pool.
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
        """Remove a transaction from the pool."""
        del self._pool[tx_hash]

    def add_foreign_tx(
        self,
        sender: Address,
        *,
        nonce: int | None = None,
        fee_cap_wei: int = 10**12,
        call: Call = FOREIGN_CALL,
    ) -> TxHash:
        """Add a transaction that was signed outside Fencepost; it replaces the pooled one at its nonce."""
        at = self._pending_nonce(sender) if nonce is None else nonce
        tx = _Tx(TxHash(self._new_hash("stranger")), sender, at, fee_cap_wei, fee_cap_wei, call)
        if (rival := self._at(sender, at)) is not None:
            self.drop(rival.hash)
        self._pool[tx.hash] = tx
        return tx.hash

    @property
    def pool(self) -> frozenset[TxHash]:
        """Return the hashes in the pool."""
        return frozenset(self._pool)

    def behind(self, blocks: int) -> InMemoryChain:
        """Return an endpoint that has not seen the newest blocks: their transactions are pending there.

        What is sent to it stays there.
        """
        shown = max(1, len(self._blocks) - blocks)
        node = copy(self)
        node._blocks = self._blocks[:shown]  # noqa: SLF001 - the same class
        unseen = {tx.hash: tx for mined in self._blocks[shown:] for tx in mined.txs}
        node._pool = unseen | self._pool  # noqa: SLF001 - as above
        return node

    # ---- the true state, whatever an endpoint reports

    @property
    def height(self) -> int:
        """Return the number of the newest block."""
        return len(self._blocks) - 1

    def newest(self, count: int) -> list[Header]:
        """Return the newest headers, the head first."""
        return [mined.header for mined in reversed(self._blocks[-count:])]

    def is_canonical(self, number: int, block_hash: BlockHash) -> bool:
        return 0 <= number < len(self._blocks) and self._blocks[number].header.hash == block_hash

    # ---- the port

    @property
    def chain_id(self) -> int:
        return self._chain_id

    @property
    def silent_for_s(self) -> float:
        return 0.0

    async def check_identity(self) -> None:
        self._reachable()

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        return [self._send_one(tx) for tx in txs]

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int:
        self._reachable()
        seen = self._blocks[max(len(self._blocks) - 1 - self.nonce_lag_blocks, 0)]
        latest = seen.nonces.get(address, 0)
        return latest if tag == "latest" else self._pending_nonce(address, latest)

    async def nonce_at(self, address: Address, number: int) -> int | None:
        self._reachable()
        kept = len(self._blocks) if self.keeps_state_blocks is None else self.keeps_state_blocks
        if not max(0, len(self._blocks) - kept) <= number < len(self._blocks):
            return None
        return self._blocks[number].nonces.get(address, 0)

    async def transactions_of(self, address: Address, number: int) -> Sequence[MinedTx] | None:
        self._reachable()
        if not 0 <= number < len(self._blocks):
            return None
        mined = self._blocks[number]
        block = BlockRef(mined.header.number, mined.header.hash)
        return [
            MinedTx(
                chain_id=self._chain_id,
                hash=tx.hash,
                sender=tx.sender,
                nonce=tx.nonce,
                block=block,
                call=tx.call,
                raw=None if self.hides_bytes else tx.raw,
                timestamp_s=mined.header.timestamp_s,
            )
            for tx in mined.txs
            if tx.sender == address
        ]

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
        latest = self._blocks[-1].header.changed(gas_limit=self.gas_limit)
        if self.is_before_london and not self.hides_that_it_is:
            latest = latest.changed(base_fee_wei=None)
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
        return TRANSFER_GAS

    async def survey(
        self, address: Address | None, hashes: Sequence[TxHash], *, timeout_s: float
    ) -> Sequence[EndpointReport]:
        del timeout_s
        if self.offline:
            return [EndpointReport("fake", EndpointTrouble.SILENT, "fake: no answer")]
        report = EndpointReport("fake", head=await self.head(), known=tuple(await self.knows(hashes)))
        if address is None:
            return [report]
        return [
            report.changed(
                latest_nonce=await self.nonce(address, "latest"),
                pending_nonce=await self.nonce(address, "pending"),
                balance_wei=await self.balance_wei(address),
            )
        ]

    async def quote_fees(self) -> FeeQuote:
        self._reachable()
        return FeeQuote.flat(Fees(fee_cap_wei=2 * self.base_fee_wei + self.tip_wei, tip_wei=self.tip_wei))

    async def revert_reason(self, tx_hash: TxHash) -> str | None:
        self._reachable()
        return self.reverting.get(tx_hash) if self._receipt(tx_hash) is not None else None

    # ---- implementation

    def _reachable(self) -> None:
        if self.offline:
            raise RpcUnavailable("fake: no answer")

    def _send_one(self, tx: SignedTx) -> SendResult:
        self.sent.append(tx)
        fault = self._faults.popleft() if self._faults else None
        if isinstance(fault, SendResult):
            return fault
        if self.offline or fault is LostResponse.BEFORE:
            return SendResult(SendCategory.UNKNOWN, "fake: time-out")
        result = self._take(tx)
        return SendResult(SendCategory.UNKNOWN, "fake: time-out") if fault is LostResponse.AFTER else result

    def _take(self, signed: SignedTx) -> SendResult:
        tx = _Tx(signed.hash, *self._decode(signed.raw), raw=signed.raw)
        next_nonce = self._blocks[-1].nonces.get(tx.sender, 0)
        if self.is_before_london and signed.raw[0] < _LEGACY_FROM:
            return SendResult(SendCategory.TYPE_NOT_SUPPORTED, "transaction type not supported")
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
        elif self.in_flight_max is not None and self._in_pool_of(tx.sender) >= self.in_flight_max:
            message = "in-flight transaction limit reached for delegated accounts"
            return SendResult(SendCategory.DELEGATED_LIMIT, message)
        self._pool[tx.hash] = tx
        return SendResult(SendCategory.ACCEPTED, returned_hash=tx.hash)

    def _in_pool_of(self, sender: Address) -> int:
        return sum(tx.sender == sender for tx in self._pool.values())

    def _unpayable(self, tx: _Tx) -> SendResult | None:
        if tx.tip_wei > tx.fee_cap_wei:
            return SendResult(SendCategory.FATAL, "max priority fee per gas higher than max fee per gas")
        if tx.fee_cap_wei < self.base_fee_wei:
            return SendResult(SendCategory.UNDERPRICED, "max fee per gas less than block base fee")
        if self.balances.get(tx.sender, self._balance_wei) < tx.fee_cap_wei * TRANSFER_GAS:
            return SendResult(SendCategory.INSUFFICIENT_FUNDS, "insufficient funds for gas * price + value")
        return None

    def _mine_one(self, only: Collection[TxHash] | None) -> None:
        parent = self._blocks[-1]
        nonces = dict(parent.nonces)
        included: list[_Tx] = []
        for tx in sorted(self._pool.values(), key=lambda tx: tx.nonce):
            wanted = (only is None or tx.hash in only) and tx.hash not in self.held_back
            if wanted and tx.nonce == nonces.get(tx.sender, 0) and tx.fee_cap_wei >= self.base_fee_wei:
                nonces[tx.sender] = tx.nonce + 1
                included.append(tx)
        # A transaction that lost its nonce to another one can never be mined.
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
            gas_limit=self.gas_limit,
            gas_used=self.gas_limit if self.blocks_are_full else 0,
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
                return Receipt(tx_hash, block, succeeded, TRANSFER_GAS, raw)
        return None

    def _block(self, mined: _Mined) -> Block:
        return Block(mined.header.changed(gas_limit=self.gas_limit), tuple(tx.hash for tx in mined.txs))

    def _new_hash(self, kind: str) -> BlockHash:
        self._made += 1
        return BlockHash("0x" + hashlib.sha256(f"{self._salt}{kind} {self._made}".encode()).hexdigest())


def _replaces(tx: _Tx, rival: _Tx) -> bool:
    return all(
        100 * new >= (100 + MIN_BUMP_PERCENT) * old
        for new, old in ((tx.tip_wei, rival.tip_wei), (tx.fee_cap_wei, rival.fee_cap_wei))
    )
