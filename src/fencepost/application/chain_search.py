"""Find the transactions with which an account consumed given nonces.

The block of nonce n is the lowest block after which the account's nonce is above n. If the endpoint still has those states,
bisection finds it: about 25 calls per transaction on the longest chains. If not (most endpoints keep the states of about
128 blocks), whole blocks are read from the head down, in batches, until everything is found or the bound is reached. Either
way the result names the blocks that were searched.

An endpoint can hide a transaction, but it can't invent one: `verify_signature` recovers the sender from the signed bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fencepost.application.ports import Chain, Header
from fencepost.domain.attribution import MinedTx
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.transaction import UnsignedTx

# Nonces per search.
MAX_NONCES = 256

# Concurrent calls for states and for blocks.
PARALLEL_STATES = 16
PARALLEL_BLOCKS = 8

# A recorded block may have been replaced by a fork since, and its transactions mined again a little lower.
FORK_MARGIN_BLOCKS = 64


class SearchResult(NamedTuple):
    """The transactions that were found, by nonce, and the blocks that were searched."""

    by_nonce: dict[int, MinedTx]
    lowest: int
    highest: int
    is_complete: bool  # missing transactions are in none of the blocks from `lowest` on
    is_behind: bool  # at the head of the search not all nonces are consumed yet

    @property
    def searched(self) -> str:
        return f"blocks {self.lowest} to {self.highest} were searched"


class _Segment(NamedTuple):
    """The nonces `from_nonce … to_nonce - 1` were consumed above block `low`, up to block `high`."""

    low: int
    high: int
    from_nonce: int
    to_nonce: int


async def find_transactions(
    chain: Chain, address: Address, nonces: range, *, lowest: int, max_blocks: int
) -> SearchResult:
    """Search for `nonces` in the block `lowest` and above. Raises `RpcError` if no endpoint answers."""
    head = (await chain.head()).number
    lowest = min(max(0, lowest), head)
    after = await chain.nonce_at(address, head)
    before = 0 if lowest == 0 else await chain.nonce_at(address, lowest - 1)
    if (
        before is not None and before > nonces.start
    ):  # a fork deeper than the margin: start at the first block
        lowest = before = 0
    is_behind = after is not None and after < nonces.stop
    if before is not None and after is not None:
        blocks = await _bisect(chain, address, nonces, _Segment(lowest - 1, head, before, after))
        if blocks is not None:
            by_nonce = await _read(chain, address, nonces, blocks)
            is_complete = len(by_nonce) == len(nonces)
            return SearchResult(by_nonce, lowest, head, is_complete=is_complete, is_behind=is_behind)
    bound = max(lowest, head - max_blocks + 1)
    by_nonce, bottom = await _scan(chain, address, nonces, bound, head)
    is_complete = len(by_nonce) == len(nonces) or (bottom <= lowest and after is not None and not is_behind)
    return SearchResult(by_nonce, bottom, head, is_complete=is_complete, is_behind=is_behind)


async def _bisect(chain: Chain, address: Address, nonces: range, root: _Segment) -> list[int] | None:
    """Return the blocks that consumed the nonces; None if a state is missing, or the states contradict each other."""
    segments, blocks = [root], []
    while segments:
        batch, segments = segments[:PARALLEL_STATES], segments[PARALLEL_STATES:]
        blocks += [segment.high for segment in batch if _has(segment, nonces) and _is_one_block(segment)]
        batch = [segment for segment in batch if _has(segment, nonces) and not _is_one_block(segment)]
        middles = [(segment.low + segment.high) // 2 for segment in batch]
        states = await asyncio.gather(*(chain.nonce_at(address, middle) for middle in middles))
        for segment, middle, state in zip(batch, middles, states, strict=True):
            if state is None or not segment.from_nonce <= state <= segment.to_nonce:
                return None
            segments.append(_Segment(segment.low, middle, segment.from_nonce, state))
            segments.append(_Segment(middle, segment.high, state, segment.to_nonce))
    return sorted(blocks)


def _has(segment: _Segment, nonces: range) -> bool:
    return max(segment.from_nonce, nonces.start) < min(segment.to_nonce, nonces.stop)


def _is_one_block(segment: _Segment) -> bool:
    return segment.high - segment.low == 1


async def _read(chain: Chain, address: Address, nonces: range, blocks: Sequence[int]) -> dict[int, MinedTx]:
    found: dict[int, MinedTx] = {}
    for start in range(0, len(blocks), PARALLEL_BLOCKS):
        batch = blocks[start : start + PARALLEL_BLOCKS]
        for txs in await asyncio.gather(*(chain.transactions_of(address, number) for number in batch)):
            found.update({tx.nonce: tx for tx in txs or () if tx.nonce in nonces})
    return found


async def _scan(
    chain: Chain, address: Address, nonces: range, bound: int, head: int
) -> tuple[dict[int, MinedTx], int]:
    """Read whole blocks, newest first, because lost commits are recent; return also the lowest block that was read."""
    found: dict[int, MinedTx] = {}
    top = head
    while top >= bound and len(found) < len(nonces):
        bottom = max(bound, top - PARALLEL_BLOCKS + 1)
        found |= await _read(chain, address, nonces, range(top, bottom - 1, -1))
        top = bottom - 1
    return found, top + 1


async def block_at_time(chain: Chain, timestamp_s: float) -> int:
    """Return the lowest block that is not older than this time, or the head's number if all are."""
    low, high = 0, (await chain.head()).number
    while low < high:
        middle = (low + high) // 2
        header = await _header(chain, middle)
        if header is not None and header.timestamp_s < timestamp_s:
            low = middle + 1
        else:
            high = middle
    return low


async def _header(chain: Chain, number: int) -> Header | None:
    block = await chain.block(number)
    return None if block is None else block.header


def verify_signature(
    mined: MinedTx, decode: Callable[[bytes], tuple[Address, UnsignedTx, TxHash]]
) -> UnsignedTx | None:
    """Return the decoded transaction if its signed bytes are known and the reported sender signed them; else None."""
    if mined.raw is None:
        return None
    try:
        sender, tx, tx_hash = decode(mined.raw)
    except ValueError:
        return None
    is_it = (sender, tx.nonce, tx_hash, tx.chain_id) == (
        mined.sender,
        mined.nonce,
        mined.hash,
        mined.chain_id,
    )
    return tx if is_it else None
