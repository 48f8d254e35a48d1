"""Faults of the endpoints and of the chain: failing endpoints, reorgs, evictions, fee spikes, foreign transactions.

At most one of the three endpoints lies, and the other two work meanwhile: that is the fault that nodes must survive. After
errors the endpoints work for a moment before one lies, because nodes avoid an endpoint that just failed.
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
from lab.chaos.testbed import FaultEvent, Testbed
from lab.proxies.rpc_proxy import HANG_S, RpcFaults

Choose = Callable[[JsonRpc, dict[str, Any]], Awaitable[str | None]]

_SHARE = 0.3
_REST_S = 4.0
_GWEI = 10**9
_MAX_BASE_FEE_WEI = 100 * _GWEI  # far below what nodes may pay
_STRANGER_INTERVAL_S = 0.5
_MAX_EVICTED = 5


# ---- endpoints


async def _rpc_fault(
    testbed: Testbed, rng: random.Random, kind: str, faults: RpcFaults, *, most_s: float
) -> FaultEvent | None:
    if testbed.lie_is_due:
        return None
    well = [endpoint for endpoint in testbed.endpoints if endpoint.faults == RpcFaults()]
    if not well:
        return None
    hit = well if rng.random() < 0.2 else [rng.choice(well)]  # noqa: PLR2004 - sometimes all of them
    at_s, lasts_s = time.time(), rng.uniform(0.3, most_s)
    for endpoint in hit:
        endpoint.faults = faults
    await asyncio.sleep(lasts_s)
    for endpoint in hit:
        endpoint.heal()
    return FaultEvent(at_s, kind, ", ".join(endpoint.name for endpoint in hit), lasts_s)


async def rpc_error(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Reject a share of the calls."""
    return await _rpc_fault(testbed, rng, "rpc_error", RpcFaults(error=_SHARE), most_s=1.5)


async def rpc_hang(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Let a share of the calls hang."""
    return await _rpc_fault(testbed, rng, "rpc_time_out", RpcFaults(hang=_SHARE), most_s=1.0)


async def rpc_executed(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Execute a share of the calls and answer with an error."""
    return await _rpc_fault(testbed, rng, "rpc_executed_then_error", RpcFaults(executed=_SHARE), most_s=1.5)


async def rpc_repointed(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Let one endpoint, or all of them, answer from another chain."""
    faults = RpcFaults(repointed_to=testbed.other_chain_url)
    return await _rpc_fault(testbed, rng, "rpc_repointed", faults, most_s=4.0)


async def rpc_lag(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Let one endpoint answer as of an older block."""
    faults = RpcFaults(lag_blocks=rng.randint(1, 6))
    if testbed.lie_is_due or any(endpoint.faults != RpcFaults() for endpoint in testbed.endpoints):
        return None
    return await _one_endpoint_fault(testbed, rng, "rpc_lag", faults)


async def rpc_wrong_nonce(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Let one endpoint report wrong nonces."""
    faults = RpcFaults(lie=rng.choice((-3, -1, 1, 2, 7, 100)))
    testbed.lie_is_due = True
    try:
        await asyncio.sleep(_REST_S + HANG_S)
        if any(endpoint.faults != RpcFaults() for endpoint in testbed.endpoints):
            return None  # one of them still lags
        return await _one_endpoint_fault(testbed, rng, "rpc_wrong_nonce", faults)
    finally:
        testbed.lie_is_due = False


async def _one_endpoint_fault(
    testbed: Testbed, rng: random.Random, kind: str, faults: RpcFaults
) -> FaultEvent:
    endpoint = rng.choice(testbed.endpoints)
    at_s, lasts_s = time.time(), rng.uniform(0.5, 2.5)
    endpoint.faults = faults
    await asyncio.sleep(lasts_s)
    endpoint.heal()
    return FaultEvent(at_s, kind, endpoint.name, lasts_s, str(faults.lie or faults.lag_blocks))


# ---- the chain


async def _reorg(testbed: Testbed, rng: random.Random, kind: str, choose: Choose) -> FaultEvent | None:
    """Replace the newest blocks; `choose` returns the bytes in place of a mined transaction, or None to drop it."""
    async with testbed.chain.exclusive() as rpc:
        head = int(await rpc.call("eth_blockNumber"), 16)
        if head <= 1:
            return None
        depth = rng.randint(1, min(testbed.plan.required_depth + 2, head - 1))
        pairs: list[tuple[str, int]] = []
        gone: set[str] = set()  # senders: a nonce above a dropped one can't be included
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
            testbed.notes[f"reorg refused: {str(error)[:60]}"] += 1
            return None
        await _resubmit_pool(rpc)
    return FaultEvent(time.time(), kind, "chain", detail=f"depth {depth}, {len(pairs)} included")


async def _resubmit_pool(rpc: JsonRpc) -> None:
    """Submit the pooled transactions again, as real nodes do after a reorg.

    Anvil does not: a transaction that waited for one of the reorg would wait for ever, and the same bytes would be rejected as
    known.
    """
    content = await rpc.call("txpool_content")
    waiting = [tx for part in content.values() for txs in part.values() for tx in txs.values()]
    waiting.sort(key=lambda tx: int(tx["nonce"], 16))
    found = await rpc.batch([("eth_getRawTransactionByHash", [tx["hash"]]) for tx in waiting])
    await rpc.call("anvil_dropAllTransactions")
    await rpc.batch([("eth_sendRawTransaction", [raw]) for raw in found if isinstance(raw, str)])


async def _same_bytes(rpc: JsonRpc, tx: dict[str, Any]) -> str | None:
    raw: str = await rpc.call("eth_getRawTransactionByHash", [tx["hash"]])
    return raw


async def reorg_dropped(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Reorganise without the transactions."""

    async def choose(_rpc: JsonRpc, _tx: dict[str, Any]) -> str | None:
        return None

    return await _reorg(testbed, rng, "reorg_dropped", choose)


async def reorg_included(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Reorganise with the same transactions."""
    return await _reorg(testbed, rng, "reorg_included", _same_bytes)


async def reorg_mixed(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Reorganise with some of the transactions."""

    async def choose(rpc: JsonRpc, tx: dict[str, Any]) -> str | None:
        return await _same_bytes(rpc, tx) if rng.random() < 0.6 else None  # noqa: PLR2004 - a share

    return await _reorg(testbed, rng, "reorg_mixed", choose)


async def reorg_replaced(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Reorganise with other attempts of the same transactions, where some were sent."""
    replaced = 0

    async def choose(rpc: JsonRpc, tx: dict[str, Any]) -> str | None:
        nonlocal replaced
        other_attempts = testbed.record.other_attempts(tx["from"], int(tx["nonce"], 16), tx["hash"])
        replaced += bool(other_attempts)
        return rng.choice(other_attempts) if other_attempts else await _same_bytes(rpc, tx)

    event = await _reorg(testbed, rng, "reorg_replaced", choose)
    return event if replaced else None


async def eviction(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Drop transactions from the pool."""
    content = await testbed.chain.call("txpool_content", [])
    waiting = sorted(tx["hash"] for part in content.values() for txs in part.values() for tx in txs.values())
    if not waiting:
        return None
    chosen = rng.sample(waiting, min(len(waiting), rng.randint(1, _MAX_EVICTED)))
    for tx_hash in chosen:
        await testbed.chain.call("anvil_dropTransaction", [tx_hash])
    return FaultEvent(time.time(), "eviction", "pool", detail=f"{len(chosen)} evicted")


async def base_fee_spike(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Raise the base fee above what the pooled transactions offer."""
    block = await testbed.chain.call("eth_getBlockByNumber", ["pending", True])
    caps_wei = [int(tx["maxFeePerGas"], 16) for tx in block["transactions"] if "maxFeePerGas" in tx]
    fee_wei = min(int(max(caps_wei, default=_GWEI) * rng.uniform(1.1, 4)), _MAX_BASE_FEE_WEI)
    await testbed.chain.call("anvil_setNextBlockBaseFeePerGas", [hex(fee_wei)])
    return FaultEvent(time.time(), "base_fee_spike", "chain", detail=f"{fee_wei / _GWEI:.1f} gwei")


# ---- foreign transactions


async def add_foreign_tx(testbed: Testbed, victim: Address) -> None:
    """Use the victim's key outside Fencepost until its signer is in PROTECT; repeat it after each reorg."""
    for attempt in range(1, 200):
        state = await testbed.database.fetchval(
            "SELECT state FROM signer_nonce_cursor WHERE signer = $1", victim
        )
        if state == "PROTECT":
            testbed.protected.add(victim)
            return
        nonce = int(await testbed.chain.call("eth_getTransactionCount", [victim, "latest"]), 16)
        tx = UnsignedTx(
            chain_id=testbed.chain_id,
            nonce=nonce,
            call=Call(to=victim, value_wei=10**9 + attempt),
            gas=21_000,
            fees=Fees(fee_cap_wei=400 * _GWEI, tip_wei=50 * _GWEI + attempt),
        )
        signed = (await testbed.keys.sign(victim, [tx]))[0]
        testbed.foreign.add(signed.hash)
        if victim not in testbed.used_victims:
            testbed.used_victims.add(victim)
            testbed.fault_events.append(
                FaultEvent(time.time(), "foreign_transaction", victim, detail=f"nonce {nonce}")
            )
        try:
            await testbed.chain.call("eth_sendRawTransaction", [f"0x{signed.raw.hex()}"])
        except RpcError as error:
            testbed.notes[f"foreign transaction rejected: {str(error)[:60]}"] += 1
        await asyncio.sleep(_STRANGER_INTERVAL_S)
