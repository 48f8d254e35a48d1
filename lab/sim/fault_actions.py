"""Inject the faults that are due at a time: outages, forks, foreign transactions, clock jumps, restarts, commands.

The operator who resolves PROTECT after the faults is here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Final

from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.states import LIVE, CursorState, State
from fencepost.testing import InMemoryChain
from lab.sim import database_failover
from lab.sim.conditions import ALL_SLOTS
from lab.sim.plan import Fault

if TYPE_CHECKING:
    from lab.sim.world import World

BASE_FEE_WEI: Final = 10**9
SPIKE_WEI: Final = 20 * 10**9

# A context of no process: callbacks set in it run while processes are paused.
NO_PROCESS: Final = Context()


def strike(world: World, fault: Fault) -> None:
    """Inject a fault, and count it if it had an effect."""
    if world.faults_go_on and _ACTIONS.get(fault.kind, _strike_node)(world, fault):
        world.recorder.count_fault(fault.kind, f"n{fault.slot}", fault.flavour, fault.size)


def _somewhere(world: World, fault: Fault) -> bool:
    """Start a condition at one node."""
    world.conditions.begin(fault.kind, fault.slot, length_s=fault.length_s, size=fault.size or 1)
    return fault.kind not in _COUNTED_PER_CALL


def _everywhere(world: World, fault: Fault) -> bool:
    world.conditions.begin(fault.kind, ALL_SLOTS, length_s=fault.length_s)
    return fault.kind not in _COUNTED_PER_CALL


def _down(world: World, fault: Fault) -> bool:
    return (_everywhere if fault.flavour == "all" else _somewhere)(world, fault)


def _rpc_dead(world: World, fault: Fault) -> bool:
    """Disable one node's endpoints until the faults end, so that another node must take over its signers."""
    world.conditions.begin(fault.kind, fault.slot, length_s=world.plan.length_s)
    return True


def _db_restart(world: World, _fault: Fault) -> bool:
    world.database.restart()
    world.conditions.begin("db_down", ALL_SLOTS, length_s=1.0)
    return True


def _nonce_lags(world: World, fault: Fault) -> bool:
    world.chain.nonce_lag_blocks = fault.size
    world.loop.call_later(fault.length_s, setattr, world.chain, "nonce_lag_blocks", 0)
    return True


def _wrong_nonce(world: World, fault: Fault) -> bool:
    if fault.flavour == "high" and not world.plan.setup.strict and world.recorder.counts[fault.kind]:
        return False  # a node that compares two readings would believe two lies at the right moments
    by = fault.size if fault.flavour == "high" else -fault.size
    world.conditions.begin(
        fault.kind, ALL_SLOTS, length_s=fault.length_s, size=by
    )  # all nodes ask the same endpoint
    return True


def _repointed(world: World, fault: Fault) -> bool:
    """Make an endpoint of one node serve another chain; its connections stay open."""
    other = InMemoryChain(world.chain.decode, chain_id=world.chain.chain_id + 1, salt=f"other {fault.at_s} ")
    for signer in world.signers:
        for _ in range(5):  # these accounts are active on the other chain, too
            other.add_foreign_tx(signer.address)
    other.mine(max(1, world.chain.height + fault.size))
    world.other_chains[fault.slot] = other
    several = fault.flavour == "one of two"
    world.conditions.begin("repointed", fault.slot, length_s=fault.length_s, size=2 if several else 1)
    return True


def _fee_spike(world: World, fault: Fault) -> bool:
    world.chain.base_fee_wei = SPIKE_WEI
    world.loop.call_later(fault.length_s, setattr, world.chain, "base_fee_wei", BASE_FEE_WEI)
    return True


def _stuck_hook(world: World, fault: Fault) -> bool:
    world.conditions.begin(fault.kind, ALL_SLOTS, length_s=fault.length_s, size=fault.size)
    return False  # counted when the hook is called


def _signer_refuses(world: World, fault: Fault) -> bool:
    """Reject every signature for one request from now on; it may fail, and no other request may wait for it."""
    world.keys.refused.add(fault.size)
    if (tx_id := world.by_number.get(fault.size)) is not None:
        world.recorder.may_fail.add(tx_id)
    return True


def _read_refused(world: World, fault: Fault) -> bool:
    """Reject one kind of read at one node from now on; for `revert_reason`, also let a transaction revert."""
    world.conditions.refused_reads[fault.flavour, fault.slot] = bool(fault.size)
    if fault.flavour == "revert_reason":
        for tx_hash in _ours(world, world.chain.pool)[:1]:
            world.chain.reverting[tx_hash] = "as planned"
            world.recorder.may_fail.add(world.database.hashes[world.chain.chain_id, tx_hash])
    return False  # counted at each call that it affects


def _operator_command(world: World, fault: Fault) -> bool:
    world.job(_ask(world, fault))
    return False  # counted when the command is sent


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
    foreign_hashes = world.recorder.foreign_hashes()
    return sorted(tx_hash for tx_hash in hashes if tx_hash not in foreign_hashes)


def _evict(world: World, fault: Fault) -> bool:
    pooled = _ours(world, world.chain.pool)
    if not pooled:
        return False
    if fault.flavour == "lowest":  # the transactions above it become non-executable
        world.chain.drop(next(tx_hash for tx_hash in world.chain.pooled_by_nonce() if tx_hash in pooled))
    else:
        world.chain.drop(pooled[fault.size % len(pooled)])
    return True


def _reorg(world: World, fault: Fault) -> bool:
    depth = min(fault.size, world.chain.height)
    if depth == 0:
        return False
    price_wei, world.chain.base_fee_wei = (
        world.chain.base_fee_wei,
        BASE_FEE_WEI,
    )  # the fee at the time of those blocks
    _fork(world, fault, depth)
    world.chain.base_fee_wei = price_wei
    world.note_depths(depth)
    return True


def _fork_unwatched(world: World, fault: Fault) -> bool:
    """Fork the chain while all nodes are down."""
    for slot in range(len(world.slots)):
        world.kill(slot, start_again_in_s=fault.length_s)
    world.loop.call_later(fault.length_s / 2, _fork_meanwhile, world, fault, context=NO_PROCESS)
    return True


def _fork_meanwhile(world: World, fault: Fault) -> None:
    if world.faults_go_on:
        _reorg(world, fault)


def _fork(world: World, fault: Fault, depth: int) -> None:
    mined = world.chain.mined_in_newest(depth)  # in chain order
    foreign_hashes = world.recorder.foreign_hashes()
    ours = [tx_hash for tx_hash, _, _ in mined if tx_hash not in foreign_hashes]
    match fault.flavour:
        case "included":
            world.chain.reorg(depth, keep=[tx_hash for tx_hash, _, _ in mined])
        case "partly":
            world.chain.reorg(depth, keep=[tx_hash for tx_hash, _, _ in mined[: (len(mined) + 1) // 2]])
        case "replaced" if ours:
            world.chain.reorg(depth)
            first = next((sender, nonce) for tx_hash, sender, nonce in mined if tx_hash == ours[0])
            _remember(world, world.chain.add_foreign_tx(first[0], nonce=first[1]))
        case _:
            world.chain.reorg(depth)
            if fault.flavour == "dropped":
                for tx_hash in ours:
                    if tx_hash in world.chain.pool:
                        world.chain.drop(tx_hash)


def _foreign_transaction(world: World, fault: Fault) -> bool:
    """Add a foreign transaction after the pending ones, or in place of the next one."""
    signer = world.signers[fault.size % len(world.signers)]
    if fault.flavour == "instead":
        nonce = world.chain.latest_nonce(signer.address)
        _remember(world, world.chain.add_foreign_tx(signer.address, nonce=nonce))
    else:
        _remember(world, world.chain.add_foreign_tx(signer.address))
    return True


def _remember(world: World, tx_hash: TxHash) -> None:
    world.recorder.foreign_txs.add(tx_hash)


# ---- the operator


async def _ask(world: World, fault: Fault) -> None:
    """Send an operator command about one request or its signer."""
    open_ = [tx_id for tx_id in world.by_number.values() if world.database.txs[tx_id].state in LIVE]
    if not open_ or world.conditions.has("disk_full"):
        return
    tx_id = open_[fault.size % len(open_)]
    signer = world.database.txs[tx_id].signer
    world.recorder.count_fault("operator_command", "operator", fault.flavour, fault.size)
    if fault.flavour == "unprotect":
        await _decide(world, signer)
        return
    if fault.flavour == "withdraw":
        await _withdraw(world, fault)
        return
    if fault.flavour == "cancel":
        world.recorder.may_fail.add(tx_id)
    about = tx_id if fault.flavour in ("cancel", "bump", "suspend", "resubmit") else None
    await world.accepting.ledger.add_command(
        signer, fault.flavour, tx_id=about, author="operator", reason=None, detail={}
    )
    world.hint(signer)


async def _withdraw(world: World, fault: Fault) -> None:
    """Withdraw a command, which may be done by the time the lane reads the withdrawal."""
    asked = [
        number for number, asked in world.database.commands.items() if asked.command.command != "withdraw"
    ]
    if asked:
        number = asked[-1 - fault.size % min(3, len(asked))]
        signer = world.database.commands[number].signer
        await world.accepting.ledger.add_command(
            signer,
            "withdraw",
            tx_id=None,
            author="operator",
            reason=None,
            detail={"commandId": number},
        )
        world.hint(signer)


async def act_as_operator(world: World) -> None:
    """Resolve everything that waits for an operator after the faults."""
    asked = {(a.signer, a.command.command) for a in world.database.commands.values() if a.outcome is None}
    for signer in world.signers:
        cursor = world.database.cursors.get(signer)
        if cursor is not None and cursor.pause is not None and (signer, "unpause") not in asked:
            await _tell(world, signer, "unpause")
        if cursor is not None and cursor.state is CursorState.PROTECT and (signer, "unprotect") not in asked:
            await _decide(world, signer)
    for tx in list(world.database.txs.values()):
        if tx.state is State.SUSPENDED and (tx.signer, "resume") not in asked:
            await world.accepting.ledger.add_command(
                tx.signer, "resume", tx_id=tx.tx_id, author="operator", reason=None, detail={}
            )
            world.hint(tx.signer)


async def _decide(world: World, signer: Signer) -> None:
    """Unprotect a signer: adopt the chain's nonce if foreign transactions consumed nonces; wait while they may still be mined."""
    foreign_hashes = world.recorder.foreign_hashes()
    if foreign_hashes & set(world.chain.mineable(signer.address)):
        return
    if _was_refused(world, signer) and await database_failover.cancel_mined_requests(world, signer):
        return
    consumed = any(sender == signer.address for sender, _ in world.chain.mined_by(foreign_hashes))
    await _tell(world, signer, "unprotect", decision="adopt" if consumed else "keep")


def _was_refused(world: World, signer: Signer) -> bool:
    """Return whether the lane answered the last unprotect command with "still protected"."""
    outcomes = [
        asked.outcome or ""
        for asked in world.database.commands.values()
        if asked.signer == signer and asked.command.command == "unprotect"
    ]
    return bool(outcomes) and outcomes[-1].startswith("still protected")


async def _tell(world: World, signer: Signer, command: str, **detail: str) -> None:
    world.recorder.log("operator", command, str(signer)[-4:], *detail.values())
    await world.accepting.ledger.add_command(
        signer, command, tx_id=None, author="operator", reason=None, detail=detail
    )
    world.hint(signer)


# Counted at each call that they affect, not at their start.
_COUNTED_PER_CALL: Final = frozenset(
    {"db_waits", "disk_full", "rpc_flaky", "receipts_withheld", "hints_lost"}
)

_ACTIONS: Final = {
    "db_down": _down,
    "db_waits": _somewhere,
    "db_restart": _db_restart,
    "disk_full": _everywhere,
    "fail_over": database_failover.fail_over,
    "restored": database_failover.restore,
    "rpc_down": _down,
    "rpc_flaky": _somewhere,
    "rpc_dead": _rpc_dead,
    "repointed": _repointed,
    "nonce_lags": _nonce_lags,
    "wrong_nonce": _wrong_nonce,
    "endpoint_lags": _somewhere,
    "blocks_lag": _somewhere,
    "receipts_withheld": _somewhere,
    "evicted": _evict,
    "fee_spike": _fee_spike,
    "reorg": _reorg,
    "fork_unwatched": _fork_unwatched,
    "foreign_transaction": _foreign_transaction,
    "no_blocks": _everywhere,
    "hints_lost": _everywhere,
    "operator_command": _operator_command,
    "stuck_hook": _stuck_hook,
    "signer_refuses": _signer_refuses,
    "read_refused": _read_refused,
}
