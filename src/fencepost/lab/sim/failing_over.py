"""A replica takes over that had not received the last commits; and the person who finds out what was done all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.domain.ids import Signer
from fencepost.domain.states import State
from fencepost.lab.history import effect_of
from fencepost.lab.sim.plan import Fault

if TYPE_CHECKING:
    from fencepost.lab.sim.world import World


def replicate(world: World, fault: Fault) -> None:
    """The last that the replica gets."""
    world.replicas[fault] = (world.database.copied(), dict(world.records.written_by))


def fail_over(world: World, fault: Fault) -> bool:
    if fault not in world.replicas:
        return False  # another one took over meanwhile
    replica, written_by = world.replicas[fault]
    world.replicas.clear()
    before = world.database.copied()
    world.database.fail_over(replica)
    world.records.failed_over(before, written_by)
    lost = [number for number, tx_id in world.by_number.items() if tx_id not in world.database.txs]
    for number in lost:
        del world.by_number[number]
    world.refused += len(lost)
    world.weather.begin("db_down", -1, length_s=1.0)
    return True


async def cancel_what_was_done(world: World, signer: Signer) -> bool:
    """Requests that look unsent, though a block has them. Whether there were any."""
    mined = {
        world.records.lost[tx_hash]
        for _, txs in world.chain.canonical()
        for tx_hash, sender, _ in txs
        if sender == signer.address and tx_hash in world.records.lost
    }
    done = [
        tx
        for tx in world.database.of_signer(signer)
        if tx.state is State.QUEUED
        and effect_of(to=tx.intent.call.to, value_wei=tx.intent.call.value_wei, data="") in mined
    ]
    for tx in done:
        world.records.may_fail.add(tx.tx_id)
        world.records.say("person", "cancels what was done", tx.intent.call.value_wei)
        await world.accepting.ledger.ask(
            signer, "cancel", tx_id=tx.tx_id, asked_by="person", reason=None, detail={}
        )
        world.hint(signer)
    return bool(done)
