"""What strikes at a moment: outages, forks, strangers, clocks, restarts, wishes. And the person who mends it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Final

from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.states import LIVE, CursorState, State
from fencepost.lab.sim import failing_over
from fencepost.lab.sim.plan import Fault
from fencepost.lab.sim.weather import EVERYWHERE

if TYPE_CHECKING:
    from fencepost.lab.sim.world import World

BASE_FEE_WEI: Final = 10**9
SPIKE_WEI: Final = 20 * 10**9

# A context of no process: what is set here goes on while others are paused.
OUTSIDE: Final = Context()


def strike(world: World, fault: Fault) -> None:
    """What finds nothing to hit does not count."""
    if world.faults_go_on and _ACTS.get(fault.kind, _strike_node)(world, fault):
        world.records.struck(fault.kind, f"n{fault.slot}", fault.flavour, fault.size)


def _somewhere(world: World, fault: Fault) -> bool:
    """At one node, for a while."""
    world.weather.begin(fault.kind, fault.slot, length_s=fault.length_s, size=fault.size or 1)
    return fault.kind not in _COUNT_THEMSELVES


def _everywhere(world: World, fault: Fault) -> bool:
    world.weather.begin(fault.kind, EVERYWHERE, length_s=fault.length_s)
    return fault.kind not in _COUNT_THEMSELVES


def _down(world: World, fault: Fault) -> bool:
    return (_everywhere if fault.flavour == "all" else _somewhere)(world, fault)


def _db_restart(world: World, _fault: Fault) -> bool:
    world.database.restart()
    world.weather.begin("db_down", EVERYWHERE, length_s=1.0)
    return True


def _nonce_lags(world: World, fault: Fault) -> bool:
    world.chain.nonce_lag_blocks = fault.size
    world.loop.call_later(fault.length_s, setattr, world.chain, "nonce_lag_blocks", 0)
    return True


def _nonce_lies(world: World, fault: Fault) -> bool:
    if fault.flavour == "high" and not world.plan.setup.strict and world.records.counts[fault.kind]:
        return False  # two lies at the right moments are a truth to whoever looks twice
    by = fault.size if fault.flavour == "high" else -fault.size
    world.weather.begin(fault.kind, EVERYWHERE, length_s=fault.length_s, size=by)  # all ask the same one
    return True


def _fee_spike(world: World, fault: Fault) -> bool:
    world.chain.base_fee_wei = SPIKE_WEI
    world.loop.call_later(fault.length_s, setattr, world.chain, "base_fee_wei", BASE_FEE_WEI)
    return True


def _asked(world: World, fault: Fault) -> bool:
    world.job(_ask(world, fault))
    return False  # it counts when it was asked


def _strike_node(world: World, fault: Fault) -> bool:
    slot = world.slots[fault.slot]
    if fault.kind == "clock_jump":
        slot.clock.ahead_s += fault.length_s
        return True
    if fault.kind == "rolling_restart":
        world.job(_roll(world))
        return True
    if slot.running is None or not slot.is_up:
        return False
    match fault.kind:
        case "killed":
            world.kill(fault.slot, start_again_in_s=fault.length_s)
        case "restart":
            world.job(_restart(world, fault.slot))
        case "hand_over":
            slot.call(slot.running.node.exclude, True)
            world.loop.call_later(fault.length_s, slot.call, slot.running.node.exclude, False)
        case "history_changed":
            slot.call(slot.running.node.history_changed, "before", "after")
        case _:
            raise ValueError(f"no such fault: {fault.kind}")
    return True


async def _restart(world: World, slot: int) -> None:
    running = world.slots[slot].running
    await world.slots[slot].stop(within_s=6.0)
    if world.slots[slot].running is running:
        world.slots[slot].start()


async def _roll(world: World) -> None:
    for slot in range(len(world.slots)):
        await _restart(world, slot)
        await asyncio.sleep(1.0)


# ---- the chain


def _ours(world: World, hashes: Iterable[TxHash]) -> list[TxHash]:
    foreign = world.records.foreign()
    return sorted(tx_hash for tx_hash in hashes if tx_hash not in foreign)


def _evict(world: World, fault: Fault) -> bool:
    pooled = _ours(world, world.chain.pool)
    if not pooled:
        return False
    world.chain.drop(pooled[fault.size % len(pooled)])
    return True


def _reorg(world: World, fault: Fault) -> bool:
    depth = min(fault.size, world.chain.height)
    if depth == 0:
        return False
    price_wei, world.chain.base_fee_wei = world.chain.base_fee_wei, BASE_FEE_WEI  # as it was in those blocks
    _fork(world, fault, depth)
    world.chain.base_fee_wei = price_wei
    world.note_depths()
    return True


def _fork_unwatched(world: World, fault: Fault) -> bool:
    """Everybody is down while the chain forks."""
    for slot in range(len(world.slots)):
        world.kill(slot, start_again_in_s=fault.length_s)
    world.loop.call_later(fault.length_s / 2, _fork_meanwhile, world, fault, context=OUTSIDE)
    return True


def _fork_meanwhile(world: World, fault: Fault) -> None:
    if world.faults_go_on:
        _reorg(world, fault)


def _fork(world: World, fault: Fault, depth: int) -> None:
    mined = world.chain.mined_in_newest(depth)  # in order
    foreign = world.records.foreign()
    ours = [tx_hash for tx_hash, _, _ in mined if tx_hash not in foreign]
    match fault.flavour:
        case "included":
            world.chain.reorg(depth, keep=[tx_hash for tx_hash, _, _ in mined])
        case "partly":
            world.chain.reorg(depth, keep=[tx_hash for tx_hash, _, _ in mined[: (len(mined) + 1) // 2]])
        case "replaced" if ours:
            world.chain.reorg(depth)
            first = next((sender, nonce) for tx_hash, sender, nonce in mined if tx_hash == ours[0])
            _remember(world, world.chain.stranger(first[0], nonce=first[1]))
        case _:
            world.chain.reorg(depth)
            if fault.flavour == "dropped":
                for tx_hash in ours:
                    if tx_hash in world.chain.pool:
                        world.chain.drop(tx_hash)


def _stranger(world: World, fault: Fault) -> bool:
    """Behind what is pending, or in place of it."""
    signer = world.signers[fault.size % len(world.signers)]
    if fault.flavour == "instead":
        nonce = world.chain.latest_nonce(signer.address)
        _remember(world, world.chain.stranger(signer.address, nonce=nonce))
    else:
        _remember(world, world.chain.stranger(signer.address))
    return True


def _remember(world: World, tx_hash: TxHash) -> None:
    world.records.strangers.add(tx_hash)


# ---- people


async def _ask(world: World, fault: Fault) -> None:
    """A wish about one request or its signer; what it stops is let go on later."""
    open_ = [tx_id for tx_id in world.by_number.values() if world.database.txs[tx_id].state in LIVE]
    if not open_ or world.weather.has("disk_full"):
        return
    tx_id = open_[fault.size % len(open_)]
    signer = world.database.txs[tx_id].signer
    world.records.struck("asked", "person", fault.flavour, fault.size)
    if fault.flavour == "unprotect":
        await _decide(world, signer)
        return
    if fault.flavour == "cancel":
        world.records.may_fail.add(tx_id)
    about = tx_id if fault.flavour in ("cancel", "bump", "suspend", "resubmit") else None
    await world.accepting.ledger.ask(
        signer, fault.flavour, tx_id=about, asked_by="person", reason=None, detail={}
    )
    world.hint(signer)


async def person_helps(world: World) -> None:
    """After the faults: whatever waits for a decision gets one."""
    asked = {(a.signer, a.command.command) for a in world.database.asked.values() if a.outcome is None}
    for signer in world.signers:
        cursor = world.database.cursors.get(signer)
        if cursor is not None and cursor.state is CursorState.PAUSED and (signer, "unpause") not in asked:
            await _tell(world, signer, "unpause")
        if cursor is not None and cursor.state is CursorState.PROTECT and (signer, "unprotect") not in asked:
            await _decide(world, signer)
    for tx in list(world.database.txs.values()):
        if tx.state is State.SUSPENDED and (tx.signer, "resume") not in asked:
            await world.accepting.ledger.ask(
                tx.signer, "resume", tx_id=tx.tx_id, asked_by="person", reason=None, detail={}
            )
            world.hint(tx.signer)


async def _decide(world: World, signer: Signer) -> None:
    """Go on from the chain's nonce if others have consumed nonces for good; wait while their bytes may be mined."""
    foreign = world.records.foreign()
    if foreign & set(world.chain.mineable(signer.address)):
        return
    if await failing_over.cancel_what_was_done(world, signer):
        return
    consumed = any(sender == signer.address for sender, _ in world.chain.mined_by(foreign))
    await _tell(world, signer, "unprotect", decision="adopt" if consumed else "keep")


async def _tell(world: World, signer: Signer, command: str, **detail: str) -> None:
    world.records.say("person", command, str(signer)[-4:], *detail.values())
    await world.accepting.ledger.ask(
        signer, command, tx_id=None, asked_by="person", reason=None, detail=detail
    )
    world.hint(signer)


# Each call that they hit counts, not their beginning.
_COUNT_THEMSELVES: Final = frozenset(
    {"db_waits", "disk_full", "rpc_flaky", "receipts_withheld", "hints_lost"}
)

_ACTS: Final = {
    "db_down": _down,
    "db_waits": _somewhere,
    "db_restart": _db_restart,
    "disk_full": _everywhere,
    "fail_over": failing_over.fail_over,
    "rpc_down": _down,
    "rpc_flaky": _somewhere,
    "nonce_lags": _nonce_lags,
    "nonce_lies": _nonce_lies,
    "endpoint_lags": _somewhere,
    "blocks_lag": _somewhere,
    "receipts_withheld": _somewhere,
    "evicted": _evict,
    "fee_spike": _fee_spike,
    "reorg": _reorg,
    "fork_unwatched": _fork_unwatched,
    "stranger": _stranger,
    "no_blocks": _everywhere,
    "hints_lost": _everywhere,
    "asked": _asked,
}
