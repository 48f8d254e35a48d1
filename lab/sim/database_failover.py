"""Fail over to a replica that misses commits, or restore an older copy, while the chain continues.

The operator then cancels the requests that a block already contains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.domain.ids import Signer
from fencepost.domain.states import State
from lab.checker.history import effect_of
from lab.sim.plan import Fault

if TYPE_CHECKING:
    from lab.sim.world import World

RESTORED_IN_S: Final = 1.0
_HIDE_BLOCKS: Final = frozenset(
    {"endpoint_lags", "nonce_lags", "blocks_lag", "wrong_nonce", "reorg", "fork_unwatched"}
)


def replicate(world: World, fault: Fault) -> None:
    """Save the rows that the replica has when it takes over."""
    world.replicas[fault] = (world.database.copied(), dict(world.recorder.written_by))


def fail_over(world: World, fault: Fault) -> bool:
    if fault not in world.replicas:
        return False  # another fail-over happened first
    replica, written_by = world.replicas[fault]
    world.replicas.clear()
    before = world.database.copied()
    world.database.fail_over(replica)
    world.recorder.after_failover(before, written_by)
    _count_lost(world)
    world.conditions.begin("db_down", -1, length_s=1.0)
    return True


def restore(world: World, fault: Fault) -> bool:
    """Stop all nodes, replace the database by an older copy, and start the nodes again.

    A restored backup is another database. A disk snapshot is the same database with older rows and leases: only blocks reveal
    that it is old. If no block does, the pools also drop the lost transactions, because no node could know of them then;
    `docs/restore.md` says so.
    """
    if fault not in world.replicas:
        return False
    for slot in range(len(world.slots)):
        world.kill(slot, start_again_in_s=RESTORED_IN_S)
    copy, written_by = world.replicas[fault]
    world.replicas.clear()
    before = world.database.copied()
    if fault.flavour == "snapshot":
        world.database.put_back(copy)
    else:
        world.database.restore(copy)
    world.recorder.after_failover(before, written_by)
    if fault.flavour == "snapshot" and not _blocks_reveal_loss(world):
        for tx_hash in world.chain.pool & world.recorder.lost.keys():
            world.chain.drop(tx_hash)
    world.recorder.forget_stopped_terms()
    _count_lost(world)
    world.conditions.begin("db_down", -1, length_s=RESTORED_IN_S)
    return True


def _blocks_reveal_loss(world: World) -> bool:
    """Return whether every node sees a block with a transaction that was lost."""
    is_seen = not any(fault.kind in _HIDE_BLOCKS for fault in world.plan.faults)
    return is_seen and bool(world.chain.mined_by(world.recorder.lost.keys()))


def _count_lost(world: World) -> None:
    lost = [number for number, tx_id in world.by_number.items() if tx_id not in world.database.txs]
    for number in lost:
        del world.by_number[number]
    world.refused += len(lost)


async def cancel_mined_requests(world: World, signer: Signer) -> bool:
    """Cancel requests that look unsent although a block has them; return whether there were any."""
    mined = {
        world.recorder.lost[tx_hash]
        for _, txs in world.chain.canonical()
        for tx_hash, sender, _ in txs
        if sender == signer.address and tx_hash in world.recorder.lost
    }
    done = [
        tx
        for tx in world.database.of_signer(signer)
        if tx.state is State.QUEUED
        and effect_of(to=tx.intent.call.to, value_wei=tx.intent.call.value_wei, data="") in mined
    ]
    for tx in done:
        world.recorder.may_fail.add(tx.tx_id)
        world.recorder.log("operator", "cancels what was done", tx.intent.call.value_wei)
        await world.accepting.ledger.add_command(
            signer, "cancel", tx_id=tx.tx_id, author="operator", reason=None, detail={}
        )
        world.hint(signer)
    return bool(done)
