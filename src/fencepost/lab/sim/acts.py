"""What strikes at a moment: outages, forks, strangers, clocks, restarts, wishes. And the person who mends it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Final

from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.states import CursorState, State
from fencepost.lab.sim.plan import Fault

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


def _down(world: World, fault: Fault) -> bool:
    where = -1 if fault.flavour == "all" else fault.slot
    world.down_until_s[fault.kind.removesuffix("_down"), where] = world.loop.time() + fault.length_s
    return True


def _nonce_lags(world: World, fault: Fault) -> bool:
    world.chain.nonce_lag_blocks = fault.size
    world.loop.call_later(fault.length_s, setattr, world.chain, "nonce_lag_blocks", 0)
    return True


def _nonce_lies(world: World, fault: Fault) -> bool:
    by = fault.size if fault.flavour == "high" else -fault.size
    world.lies[fault.slot] = (world.loop.time() + fault.length_s, by)
    return True


def _fee_spike(world: World, fault: Fault) -> bool:
    world.chain.base_fee_wei = SPIKE_WEI
    world.loop.call_later(fault.length_s, setattr, world.chain, "base_fee_wei", BASE_FEE_WEI)
    return True


def _no_blocks(world: World, fault: Fault) -> bool:
    world.no_blocks_until_s = world.loop.time() + fault.length_s
    return True


def _hints_lost(world: World, fault: Fault) -> bool:
    world.hints_lost_until_s = world.loop.time() + fault.length_s
    return False  # each hint that is lost counts


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
    return sorted(tx_hash for tx_hash in hashes if tx_hash not in world.records.strangers)


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


def _fork(world: World, fault: Fault, depth: int) -> None:
    mined = world.chain.mined_in_newest(depth)  # in order
    ours = [tx_hash for tx_hash, _, _ in mined if tx_hash not in world.records.strangers]
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
    tx_id = world.by_number.get(fault.size)
    if tx_id is None:
        return
    signer = world.database.txs[tx_id].signer
    world.records.struck("asked", "person", fault.flavour, fault.size)
    if fault.flavour == "cancel":
        world.records.may_fail.add(tx_id)
    about = tx_id if fault.flavour in ("cancel", "bump", "suspend", "resubmit") else None
    detail = {"decision": "keep"} if fault.flavour == "unprotect" else {}
    await world.accepting.ledger.ask(
        signer, fault.flavour, tx_id=about, asked_by="person", reason=None, detail=detail
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
    """Go on from the chain's nonce if a stranger has consumed nonces for good; wait while his bytes are pending."""
    if any(tx_hash in world.records.strangers for tx_hash in world.chain.pool):
        return
    consumed = any(sender == signer.address for sender, _ in world.chain.mined_by(world.records.strangers))
    await _tell(world, signer, "unprotect", decision="adopt" if consumed else "keep")


async def _tell(world: World, signer: Signer, command: str, **detail: str) -> None:
    world.records.say("person", command, str(signer)[-4:], *detail.values())
    await world.accepting.ledger.ask(
        signer, command, tx_id=None, asked_by="person", reason=None, detail=detail
    )
    world.hint(signer)


_ACTS: Final = {
    "db_down": _down,
    "rpc_down": _down,
    "nonce_lags": _nonce_lags,
    "nonce_lies": _nonce_lies,
    "evicted": _evict,
    "fee_spike": _fee_spike,
    "reorg": _reorg,
    "stranger": _stranger,
    "no_blocks": _no_blocks,
    "hints_lost": _hints_lost,
    "asked": _asked,
}
