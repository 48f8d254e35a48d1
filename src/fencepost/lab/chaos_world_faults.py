"""What happens on the way to the chain, and on the chain: endpoints that fail, reorgs, an emptied pool, a stranger.

Of the three endpoints one at most lies, and while it does the other two are well: that is the fault that nodes promise
to survive. After errors they are left alone for a moment before one lies, since nodes let a failing endpoint rest.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.domain.ids import Address
from fencepost.domain.transaction import Call, Fees, UnsignedTx
from fencepost.errors import RpcError
from fencepost.lab.chaos_stage import Happened, Stage
from fencepost.lab.rpc_proxy import HANG_S, RpcFaults

Choose = Callable[[JsonRpc, dict[str, Any]], Awaitable[str | None]]

_SHARE = 0.3
_REST_S = 4.0
_GWEI = 10**9
_BASE_FEE_WEI_MOST = 100 * _GWEI  # what nodes may pay at most is far above
_STRANGER_EVERY_S = 0.5
_EVICTED_MOST = 5


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


async def _reorg(stage: Stage, chance: random.Random, kind: str, choose: Choose) -> Happened | None:
    """`choose` says of a mined transaction which bytes the new blocks have in its place, or None for nothing."""
    async with stage.chain.alone() as rpc:
        head = int(await rpc.call("eth_blockNumber"), 16)
        if head <= 1:
            return None
        depth = chance.randint(1, min(stage.plan.required_depth + 2, head - 1))
        pairs: list[tuple[str, int]] = []
        gone: set[str] = set()  # senders: what follows a dropped nonce can't be included
        for offset, number in enumerate(range(head - depth + 1, head + 1)):
            block = await rpc.call("eth_getBlockByNumber", [hex(number), True])
            for tx in block["transactions"]:
                raw = None if tx["from"] in gone else await choose(rpc, tx)
                if raw is None:
                    gone.add(tx["from"])
                else:
                    pairs.append((raw, offset))
        try:
            await rpc.call("anvil_reorg", [depth, pairs])
        except RpcError as error:
            stage.notes[f"reorg refused: {str(error)[:60]}"] += 1
            return None
        await _put_in_anew(rpc)
    return Happened(time.time(), kind, "chain", detail=f"depth {depth}, {len(pairs)} included")


async def _put_in_anew(rpc: JsonRpc) -> None:
    """What waits in the pool is judged again by the new chain, as real nodes do it.

    Anvil does not: a transaction that waited for one which the reorg has brought would wait for ever, and the same bytes
    would be refused as known.
    """
    content = await rpc.call("txpool_content")
    waiting = [tx for part in content.values() for txs in part.values() for tx in txs.values()]
    waiting.sort(key=lambda tx: int(tx["nonce"], 16))
    found = await rpc.batch([("eth_getRawTransactionByHash", [tx["hash"]]) for tx in waiting])
    await rpc.call("anvil_dropAllTransactions")
    await rpc.batch([("eth_sendRawTransaction", [raw]) for raw in found if isinstance(raw, str)])


async def _the_same(rpc: JsonRpc, tx: dict[str, Any]) -> str | None:
    raw: str = await rpc.call("eth_getRawTransactionByHash", [tx["hash"]])
    return raw


async def reorg_dropped(stage: Stage, chance: random.Random) -> Happened | None:
    async def choose(_rpc: JsonRpc, _tx: dict[str, Any]) -> str | None:
        return None

    return await _reorg(stage, chance, "reorg_dropped", choose)


async def reorg_included(stage: Stage, chance: random.Random) -> Happened | None:
    return await _reorg(stage, chance, "reorg_included", _the_same)


async def reorg_mixed(stage: Stage, chance: random.Random) -> Happened | None:
    async def choose(rpc: JsonRpc, tx: dict[str, Any]) -> str | None:
        return await _the_same(rpc, tx) if chance.random() < 0.6 else None  # noqa: PLR2004 - a share

    return await _reorg(stage, chance, "reorg_mixed", choose)


async def reorg_replaced(stage: Stage, chance: random.Random) -> Happened | None:
    """The new blocks have another attempt of the same transaction, where one was sent."""
    replaced = 0

    async def choose(rpc: JsonRpc, tx: dict[str, Any]) -> str | None:
        nonlocal replaced
        others = stage.record.others(tx["from"], int(tx["nonce"], 16), tx["hash"])
        replaced += bool(others)
        return chance.choice(others) if others else await _the_same(rpc, tx)

    happened = await _reorg(stage, chance, "reorg_replaced", choose)
    return happened if replaced else None


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
    """What waits in the pool is underpriced until the fee has come down again, or somebody pays more."""
    block = await stage.chain.call("eth_getBlockByNumber", ["pending", True])
    caps_wei = [int(tx["maxFeePerGas"], 16) for tx in block["transactions"] if "maxFeePerGas" in tx]
    fee_wei = min(int(max(caps_wei, default=_GWEI) * chance.uniform(1.1, 4)), _BASE_FEE_WEI_MOST)
    await stage.chain.call("anvil_setNextBlockBaseFeePerGas", [hex(fee_wei)])
    return Happened(time.time(), "base_fee_spike", "chain", detail=f"{fee_wei / _GWEI:.1f} gwei")


# ---- a stranger


async def stranger(stage: Stage, victim: Address) -> None:
    """Somebody else uses the victim's key, until its signer is in PROTECT. Every reorg may undo it: again."""
    for attempt in range(1, 200):
        state = await stage.database.fetchval(
            "SELECT state FROM signer_nonce_cursor WHERE signer = $1", victim
        )
        if state == "PROTECT":
            stage.protected.add(victim)
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
        if victim not in stage.struck:
            stage.struck.add(victim)
            stage.happened.append(Happened(time.time(), "stranger", victim, detail=f"nonce {nonce}"))
        try:
            await stage.chain.call("eth_sendRawTransaction", [f"0x{signed.raw.hex()}"])
        except RpcError as error:
            stage.notes[f"stranger refused: {str(error)[:60]}"] += 1
        await asyncio.sleep(_STRANGER_EVERY_S)
