"""Find nonce gaps and fill them: nonces below the cursor that neither the chain, nor a pool, nor the ledger holds.

Transactions above a gap are never mined. A gap exists when the cursor was moved too high, because an endpoint reported a
wrong nonce or a chain was reset. On an operator's command, fillers consume the missing nonces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from fencepost.application import signing
from fencepost.application.lane import Lane, protect
from fencepost.application.ports import Cursor, TxChange
from fencepost.application.uuid7 import new_tx_id
from fencepost.application.verified_nonces import verified_nonces
from fencepost.domain import transaction_state
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent, Kind, ManagedTx, Purpose

# A wider gap needs several commands: an operator checks each, and no endpoint's pool is flooded.
MAX_FILLERS = 256


# Missing nonces raise an alarm when they have been missing for this long.
GAP_ALARM_S = 30.0


@dataclass(frozen=True, slots=True)
class NonceGap:
    nonces: tuple[int, ...]  # the lowest missing nonces, at most `MAX_FILLERS`
    left: int  # how many more are missing above those
    on_chain: int  # the higher of the chain's and the pool's nonce


async def find_gap(lane: Lane, cursor: Cursor) -> NonceGap:
    on_chain = (await verified_nonces(lane)).pending
    ended = await lane.ports.ledger.load_finished(lane.signer, from_nonce=on_chain, limit=MAX_FILLERS)
    # Finished transactions above the chain's nonce are rare. If the limit is reached, the next command handles the rest.
    stop = ended[-1].held_nonce() if len(ended) == MAX_FILLERS else cursor.next_nonce
    candidates = range(on_chain, max(on_chain, stop))
    held = {nonce for nonce in (*lane.in_flight, *map(ManagedTx.held_nonce, ended)) if nonce in candidates}
    nonces = tuple(islice((nonce for nonce in candidates if nonce not in held), MAX_FILLERS))
    return NonceGap(nonces, left=len(candidates) - len(held) - len(nonces), on_chain=on_chain)


async def check_gap(lane: Lane, latest: int, *, below: int) -> None:
    """Raise an alarm if nonces from `latest` to `below` are missing for `GAP_ALARM_S`: nothing above them is mined.

    An endpoint that lags looks the same, hence the wait.
    """
    suspicion = lane.suspicion
    cursor = lane.cursor
    if (
        cursor is None
        or lane.is_protected
        or lane.finality_unknown
        or latest >= below
        or latest in lane.in_flight
    ):
        suspicion.gap_since_s = None
        return
    now_s = lane.now_s()
    if suspicion.gap_since_s is None:
        suspicion.gap_since_s = now_s
    if now_s - suspicion.gap_since_s < GAP_ALARM_S:
        return
    gap = await find_gap(lane, cursor)
    missing = [nonce for nonce in gap.nonces if nonce < below]
    suspicion.gap_since_s = None
    if missing:
        await protect(
            lane,
            f"the chain's nonce is {gap.on_chain}, the cursor is {cursor.next_nonce}, and no transaction has the nonces from"
            f" {missing[0]} to {missing[-1]}: no transaction above them can be mined. Run unprotect with the decision fill",
        )


async def fillers(lane: Lane, nonces: Sequence[int]) -> list[TxChange]:
    """Sign one filler per nonce. The caller stores and allocates them in one write; then they are sent like all others."""
    fees = await signing.quote(lane, Purpose.FILLER)
    gas = await signing.filler_gas(lane)
    txs = [
        ManagedTx(
            new_tx_id(), lane.signer, seq=0, kind=Kind.FILLER, intent=Intent(Call(to=lane.signer.address))
        )
        for _ in nonces
    ]
    unsigned = [
        signing.build_unsigned(lane, tx, nonce=nonce, gas=gas, fees=fees, purpose=Purpose.FILLER)
        for tx, nonce in zip(txs, nonces, strict=True)
    ]
    signed = await signing.sign(signing.Batch(lane, txs, unsigned, Purpose.FILLER))
    return [
        lane.change(tx, partial(transaction_state.assign_nonce, nonce=nonce, attempt=attempt))
        for tx, nonce, attempt in zip(txs, nonces, signed, strict=True)
    ]
