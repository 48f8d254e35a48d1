"""Holes: nonces below our cursor that nobody has, neither the chain, nor a node's pool, nor a row of ours.

What lies above a hole is never mined. One comes from a cursor that was moved too high, on the word of a node that lied
or of a chain that was set back. When a person says so, fillers take its nonces: transfers of nothing to oneself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from fencepost.application import attempts
from fencepost.application.lane import Lane
from fencepost.application.ports import Cursor, TxChange
from fencepost.application.tx_ids import new_tx_id
from fencepost.domain import managed
from fencepost.domain.managed import Intent, Kind, ManagedTx, Purpose
from fencepost.domain.transaction import Call

# A wider hole is filled in several goes: a person looks at each, and no node's pool is flooded.
MOST_FILLED = 256


@dataclass(frozen=True, slots=True)
class Hole:
    nonces: tuple[int, ...]  # the lowest, as many as are filled in one go
    left: int  # missing above those
    on_chain: int  # where the chain and the pool that was asked stand


async def find_hole(lane: Lane, cursor: Cursor) -> Hole:
    address = lane.signer.address
    latest = await lane.chain.nonce(address, "latest")
    on_chain = max(latest, await lane.chain.nonce(address, "pending"))
    ended = await lane.ledger.load_finished(lane.signer, from_nonce=on_chain, limit=MOST_FILLED)
    # Ended ones above the chain's nonce are rare; of so many, those above are looked at in the next go.
    stop = ended[-1].held_nonce() if len(ended) == MOST_FILLED else cursor.next_nonce
    candidates = range(on_chain, max(on_chain, stop))
    held = {nonce for nonce in (*lane.in_flight, *map(ManagedTx.held_nonce, ended)) if nonce in candidates}
    nonces = tuple(islice((nonce for nonce in candidates if nonce not in held), MOST_FILLED))
    return Hole(nonces, left=len(candidates) - len(held) - len(nonces), on_chain=on_chain)


async def fillers(lane: Lane, nonces: Sequence[int]) -> list[TxChange]:
    """One transaction a nonce, signed: they are stored and allocated in one write, and then go the way of all others."""
    fees = await attempts.quote(lane)
    gas = await attempts.filler_gas(lane)
    made = [
        ManagedTx(
            new_tx_id(), lane.signer, seq=0, kind=Kind.FILLER, intent=Intent(Call(to=lane.signer.address))
        )
        for _ in nonces
    ]
    wanted = [
        attempts.unsigned(lane, tx, nonce=nonce, gas=gas, fees=fees, purpose=Purpose.FILLER)
        for tx, nonce in zip(made, nonces, strict=True)
    ]
    signed = await attempts.sign(lane, wanted, numbers=[1] * len(wanted), purpose=Purpose.FILLER)
    return [
        lane.change(tx, partial(managed.allocated, nonce=nonce, attempt=attempt))
        for tx, nonce, attempt in zip(made, nonces, signed, strict=True)
    ]
