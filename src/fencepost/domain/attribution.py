"""Match transactions found on the chain to the stored requests that they carry out.

A database that was restored from an older copy does not know what was sent after the copy was made. The chain does. A
transaction and a request match if they have the same effect (receiver, value and data, on the same chain). Price and gas
limit are not compared, because a fee bump changes them.

Several requests may have the same effect. Then the transaction with the lowest nonce matches the oldest of them, because
nonces are assigned in the order of arrival. Which of two equal requests gets which transaction makes no difference on the
chain. But no transaction may count for two requests, and no request for two transactions.

An account may have earlier transactions of its own that look like the present requests. Where the database never assigned a
nonce, time separates them: a transaction that was mined before a request was accepted did not carry it out. Two clocks are
compared, the chain's and the database's. If the chain's is behind (a dev chain with a set time), a transaction that carried a
request out also looks older than it. So what looks older only because of that difference is neither a match nor foreign: it is
unclear, and an operator decides. A chain whose clock was behind then and is right now can't be recognized.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.struct import Struct
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Kind, ManagedTx

# A block's timestamp may lie a little before the acceptance of the requests that it carries out, and clocks differ.
CLOCK_MARGIN_S = 30.0


class MinedTx(Struct, frozen=True):
    """A transaction in a block, as an endpoint reports it.

    `raw` has the signed bytes, encoded again from the endpoint's fields, if they hash to `hash`. It is None for a type of
    transaction that Fencepost never signs, and if the endpoint left fields out.
    """

    chain_id: int
    hash: TxHash
    sender: Address
    nonce: int
    block: BlockRef
    call: Call
    raw: bytes | None = None
    timestamp_s: int | None = None  # of its block

    def __str__(self) -> str:
        receiver = self.call.to or "a new contract"
        return f"{self.hash} (nonce {self.nonce}, block {self.block.number}, to {receiver})"


class Effect(NamedTuple):
    """The effect of a transaction on the chain, without its price and gas limit."""

    chain_id: int
    to: Address | None
    value_wei: int
    data: bytes


def effect_of(chain_id: int, call: Call) -> Effect:
    return Effect(chain_id, call.to, call.value_wei, call.data)


class Match(NamedTuple):
    mined: MinedTx
    request: ManagedTx


class Attribution(NamedTuple):
    """The result of `attribute`: each transaction is a match, foreign, or unclear. All are in the order of nonces."""

    matches: tuple[Match, ...]
    foreign: tuple[MinedTx, ...]
    unclear: tuple[Match, ...]


def may_match(request: ManagedTx) -> bool:
    """Return whether a mined transaction can belong to this request: it is live, has a payload and has no nonce.

    A request for a handler has no payload: only the handler knows what it would have built.
    """
    return request.kind is Kind.INTENT and request.nonce is None and not request.is_terminal


def attribute(
    mined: Iterable[MinedTx],
    requests: Iterable[ManagedTx],
    *,
    by_time: bool = False,
    chain_lag_s: float = 0.0,
) -> Attribution:
    """Match one to one: the lowest nonce first, with the oldest request that has the same effect.

    With `by_time`, a transaction that was mined before a request was accepted does not match that request. `chain_lag_s`
    is how far the chain's clock is behind the database's.
    """
    waiting: dict[Effect, deque[ManagedTx]] = defaultdict(deque)
    for request in sorted(filter(may_match, requests), key=lambda request: request.seq):
        waiting[effect_of(request.signer.chain_id, request.intent.call)].append(request)
    matches: list[Match] = []
    foreign: list[MinedTx] = []
    unclear: list[Match] = []
    for tx in sorted(mined, key=lambda tx: tx.nonce):
        same = waiting.get(effect_of(tx.chain_id, tx.call))
        if not same or (by_time and _is_older(tx, same[0], chain_lag_s)):
            foreign.append(tx)
        elif by_time and _is_older(tx, same[0], 0.0):
            unclear.append(Match(tx, same.popleft()))
        else:
            matches.append(Match(tx, same.popleft()))
    return Attribution(tuple(matches), tuple(foreign), tuple(unclear))


def _is_older(mined: MinedTx, request: ManagedTx, chain_lag_s: float) -> bool:
    """Return whether the transaction was mined before the request was accepted.

    `request` is the oldest of equal requests: if it is too late, so are the others.
    """
    if mined.timestamp_s is None or request.accepted_at_s is None:
        return False
    return mined.timestamp_s + chain_lag_s + CLOCK_MARGIN_S < request.accepted_at_s


def is_filler(mined: MinedTx) -> bool:
    """Return whether the transaction is a filler: a transfer of nothing to its own sender."""
    return mined.call.to == mined.sender and mined.call.value_wei == 0 and not mined.call.data
