"""What happens around the nodes: to their wires, to the database, to the endpoints, on the chain.

Of the three endpoints one at most lies, and while it does the other two are well: that is the fault that nodes promise
to survive. After errors they are left alone for a moment before one lies, since nodes let a failing endpoint rest.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from fencepost.domain.transaction import Call, Fees, UnsignedTx
from fencepost.errors import RpcError
from fencepost.lab.chaos_stage import Happened, Slot, Stage
from fencepost.lab.db_proxy import Fault as WireFault
from fencepost.lab.rpc_proxy import HANG_S, RpcFaults

_SHARE = 0.3
_REST_S = 4.0
_GWEI = 10**9
_STRANGER_EVERY_S = 0.5
_EVICTED_MOST = 5


# ---- wires and database


def _wire(stage: Stage, chance: random.Random) -> Slot | None:
    free = [slot for slot in stage.slots if slot.wire.is_well]
    return chance.choice(free) if free else None


async def _wire_fault(
    stage: Stage, chance: random.Random, kind: str, fault: WireFault, *, least_s: float, most_s: float
) -> Happened | None:
    slot = _wire(stage, chance)
    if slot is None:
        return None
    at_s, lasts_s = time.time(), chance.uniform(least_s, most_s)
    is_whole = chance.random() < 0.3  # noqa: PLR2004 - now and then all of a node's connections
    slot.wire.strike(fault, None if is_whole else chance)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        slot.wire.heal()
    return Happened(at_s, kind, slot.name, lasts_s, "all connections" if is_whole else "some connections")


async def db_cut(stage: Stage, chance: random.Random) -> Happened | None:
    return await _wire_fault(stage, chance, "db_cut", "cut", least_s=0.02, most_s=0.8)


async def db_black_hole(stage: Stage, chance: random.Random) -> Happened | None:
    longest_s = 1.2 * stage.plan.lease_s
    return await _wire_fault(stage, chance, "db_black_hole", "black_hole", least_s=0.1, most_s=longest_s)


async def db_dropped_answer(stage: Stage, chance: random.Random) -> Happened | None:
    return await _wire_fault(stage, chance, "db_dropped_answer", "drop_answers", least_s=0.02, most_s=0.5)


async def db_delay(stage: Stage, chance: random.Random) -> Happened | None:
    slot = _wire(stage, chance)
    if slot is None:
        return None
    at_s, lasts_s = time.time(), chance.uniform(0.3, 1.2)
    slot.wire.delay(chance.uniform(0.005, 0.05))
    await asyncio.sleep(lasts_s)
    slot.wire.heal()
    return Happened(at_s, "db_delay", slot.name, lasts_s)


async def backend_terminated(stage: Stage, chance: random.Random) -> Happened | None:
    name = chance.choice(stage.slots).name
    ended = await stage.database.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM"
        " (SELECT pid FROM pg_stat_activity WHERE application_name = $1 LIMIT $2) chosen",
        f"fencepost {name}",
        chance.randint(1, 3),
    )
    return Happened(time.time(), "backend_terminated", name, detail=f"{ended} sessions") if ended else None


async def db_restart(stage: Stage, _chance: random.Random) -> Happened | None:
    """`-m immediate`: a crash of the server, and recovery from its log."""
    at_s = time.time()
    await stage.postgres.restart("immediate")
    return Happened(at_s, "db_restart_immediate", "PostgreSQL", time.time() - at_s)


# ---- endpoints


async def _rpc_fault(
    stage: Stage, chance: random.Random, kind: str, faults: RpcFaults, *, most_s: float
) -> Happened | None:
    if stage.lie_is_wanted:
        return None
    well = [endpoint for endpoint in stage.endpoints if endpoint.faults == RpcFaults()]
    if not well:
        return None
    hit = well if chance.random() < 0.2 else [chance.choice(well)]  # noqa: PLR2004 - now and then all of them
    at_s, lasts_s = time.time(), chance.uniform(0.3, most_s)
    for endpoint in hit:
        endpoint.faults = faults
    await asyncio.sleep(lasts_s)
    for endpoint in hit:
        endpoint.heal()
    return Happened(at_s, kind, ", ".join(endpoint.name for endpoint in hit), lasts_s)


async def rpc_error(stage: Stage, chance: random.Random) -> Happened | None:
    return await _rpc_fault(stage, chance, "rpc_error", RpcFaults(error=_SHARE), most_s=1.5)


async def rpc_hang(stage: Stage, chance: random.Random) -> Happened | None:
    return await _rpc_fault(stage, chance, "rpc_time_out", RpcFaults(hang=_SHARE), most_s=1.0)


async def rpc_executed(stage: Stage, chance: random.Random) -> Happened | None:
    return await _rpc_fault(stage, chance, "rpc_executed_then_error", RpcFaults(executed=_SHARE), most_s=1.5)


async def rpc_lag(stage: Stage, chance: random.Random) -> Happened | None:
    faults = RpcFaults(lag_blocks=chance.randint(1, 6))
    if stage.lie_is_wanted or any(endpoint.faults != RpcFaults() for endpoint in stage.endpoints):
        return None
    return await _one_odd(stage, chance, "rpc_lag", faults)


async def rpc_lie(stage: Stage, chance: random.Random) -> Happened | None:
    faults = RpcFaults(lie=chance.choice((-3, -1, 1, 2, 7, 100)))
    stage.lie_is_wanted = True
    try:
        await asyncio.sleep(_REST_S + HANG_S)
        if any(endpoint.faults != RpcFaults() for endpoint in stage.endpoints):
            return None  # one of them still lags
        return await _one_odd(stage, chance, "rpc_lie", faults)
    finally:
        stage.lie_is_wanted = False


async def _one_odd(stage: Stage, chance: random.Random, kind: str, faults: RpcFaults) -> Happened:
    endpoint = chance.choice(stage.endpoints)
    at_s, lasts_s = time.time(), chance.uniform(0.5, 2.5)
    endpoint.faults = faults
    await asyncio.sleep(lasts_s)
    endpoint.heal()
    return Happened(at_s, kind, endpoint.name, lasts_s, str(faults.lie or faults.lag_blocks))


# ---- the chain


async def _reorg(stage: Stage, chance: random.Random, kind: str, *, share_included: float) -> Happened | None:
    head = int(await stage.chain.call("eth_blockNumber", []), 16)
    depth = chance.randint(1, min(stage.plan.required_depth + 2, head - 1)) if head > 1 else 0
    if depth == 0:
        return None
    pairs: list[list[Any]] = []
    dropped: set[str] = set()  # senders: what follows a dropped nonce can't be included
    for offset, number in enumerate(range(head - depth + 1, head + 1)):
        block = await stage.chain.call("eth_getBlockByNumber", [hex(number), True])
        for tx in block["transactions"] if block else []:
            if tx["from"] not in dropped and chance.random() < share_included:
                raw = await stage.chain.call("eth_getRawTransactionByHash", [tx["hash"]])
                pairs.append([raw, offset])
            else:
                dropped.add(tx["from"])
    try:
        await stage.chain.call("anvil_reorg", [depth, pairs])
    except RpcError as error:  # a block came in between, and what was to be included no longer fits
        stage.notes[f"reorg refused: {str(error)[:60]}"] += 1
        return None
    return Happened(time.time(), kind, "chain", detail=f"depth {depth}, {len(pairs)} included")


async def reorg_dropped(stage: Stage, chance: random.Random) -> Happened | None:
    return await _reorg(stage, chance, "reorg_dropped", share_included=0.0)


async def reorg_included(stage: Stage, chance: random.Random) -> Happened | None:
    return await _reorg(stage, chance, "reorg_included", share_included=1.0)


async def reorg_mixed(stage: Stage, chance: random.Random) -> Happened | None:
    return await _reorg(stage, chance, "reorg_mixed", share_included=0.6)


async def eviction(stage: Stage, chance: random.Random) -> Happened | None:
    content = await stage.chain.call("txpool_content", [])
    waiting = sorted(tx["hash"] for part in content.values() for txs in part.values() for tx in txs.values())
    if not waiting:
        return None
    chosen = chance.sample(waiting, min(len(waiting), chance.randint(1, _EVICTED_MOST)))
    for tx_hash in chosen:
        await stage.chain.call("anvil_dropTransaction", [tx_hash])
    return Happened(time.time(), "eviction", "pool", detail=f"{len(chosen)} evicted")


async def base_fee_spike(stage: Stage, chance: random.Random) -> Happened | None:
    """What waits in the pool is underpriced until the fee has come down again."""
    fee_wei = int(chance.uniform(3, 30) * _GWEI)
    await stage.chain.call("anvil_setNextBlockBaseFeePerGas", [hex(fee_wei)])
    return Happened(time.time(), "base_fee_spike", "chain", detail=f"{fee_wei / _GWEI:.1f} gwei")


# ---- a stranger


async def stranger(stage: Stage) -> None:
    """Somebody else uses the victim's key, until the victim's signer is in PROTECT. Every reorg may undo it: again."""
    victim = stage.victim
    for attempt in range(1, 200):
        state = await stage.database.fetchval(
            "SELECT state FROM signer_nonce_cursor WHERE signer = $1", victim
        )
        stage.victim_is_protected = state == "PROTECT"
        if stage.victim_is_protected:
            return
        nonce = int(await stage.chain.call("eth_getTransactionCount", [victim, "latest"]), 16)
        tx = UnsignedTx(
            chain_id=stage.chain_id,
            nonce=nonce,
            call=Call(to=victim, value_wei=10**9 + attempt),
            gas=21_000,
            fees=Fees(fee_cap_wei=400 * _GWEI, tip_wei=50 * _GWEI + attempt),
        )
        signed = (await stage.keys.sign(victim, [tx]))[0]
        stage.strangers.add(signed.hash)
        try:
            await stage.chain.call("eth_sendRawTransaction", [f"0x{signed.raw.hex()}"])
        except RpcError as error:
            stage.notes[f"stranger refused: {str(error)[:60]}"] += 1
        if attempt == 1:
            stage.happened.append(Happened(time.time(), "stranger", victim, detail=f"nonce {nonce}"))
        await asyncio.sleep(_STRANGER_EVERY_S)
