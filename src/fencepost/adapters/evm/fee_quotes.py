"""Cache the endpoint's fee quote for all signers.

A quote is valid for `FRESH_S`; after half of that, the next caller starts a refresh without waiting for it. So a busy node
refreshes about twice per second, and only the first caller after a pause waits. Callers during a refresh share its result
or its error.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fencepost.adapters.evm import decoding
from fencepost.adapters.evm.endpoints import Endpoint
from fencepost.domain.transaction import Fees
from fencepost.errors import RpcRefused

FRESH_S: Final = 1.0
_HISTORY_BLOCKS: Final = 5
_PERCENTILE: Final = 50


class FeeQuotes:
    def __init__(self, ask: Callable[[], Awaitable[Fees]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._latest: tuple[float, Fees] | None = None  # since when, and what
        self._refresh_task: asyncio.Task[Fees] | None = None

    async def now(self) -> Fees:
        if self._latest is not None:
            at_s, fees = self._latest
            age_s = self._clock() - at_s
            if age_s < FRESH_S:
                if age_s >= FRESH_S / 2:
                    self._start_refresh()
                return fees
        return await asyncio.shield(self._start_refresh())

    def _start_refresh(self) -> asyncio.Task[Fees]:
        if self._refresh_task is None:
            self._refresh_task = asyncio.get_running_loop().create_task(self._refresh())
            self._refresh_task.add_done_callback(self._on_refreshed)
        return self._refresh_task

    async def _refresh(self) -> Fees:
        started_s = self._clock()
        fees = await self._ask()
        self._latest = (started_s, fees)
        return fees

    def _on_refreshed(self, task: asyncio.Task[Fees]) -> None:
        self._refresh_task = None
        if not task.cancelled():
            task.exception()  # mark as retrieved if no caller waited; the quote ages, and the next caller gets the error

    async def aclose(self) -> None:
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.wait({self._refresh_task})


async def quote(endpoint: Endpoint) -> Fees:
    try:
        history = await endpoint.rpc.call("eth_feeHistory", [hex(_HISTORY_BLOCKS), "latest", [_PERCENTILE]])
    except RpcRefused:
        history = None  # a chain from before EIP-1559
    base_fees = history.get("baseFeePerGas") if isinstance(history, dict) else None
    if not isinstance(base_fees, list) or not base_fees:
        gas_price_wei = await _gas_price_wei(endpoint)
        return Fees(fee_cap_wei=gas_price_wei, tip_wei=gas_price_wei)
    base_wei = decoding.quantity(base_fees[-1], of="base fee")  # the last one is the next block's
    tip_wei = _median_tip_wei(history.get("reward"))
    if not tip_wei:
        # Blocks without transactions have no tip. Many nodes reject a tip of 0, unless gas costs nothing at all.
        gas_price_wei = await _gas_price_wei(endpoint)
        tip_wei = max(gas_price_wei - base_wei, 0) or (1 if base_wei else 0)
    return Fees(fee_cap_wei=2 * base_wei + tip_wei, tip_wei=tip_wei)


async def _gas_price_wei(endpoint: Endpoint) -> int:
    return decoding.quantity(await endpoint.rpc.call("eth_gasPrice"), of="gas price")


def _median_tip_wei(rewards: Any) -> int:
    """Return the median tip of the blocks that have transactions; 0 if none has."""
    if not isinstance(rewards, list):
        return 0
    tips = [
        decoding.quantity(reward[0], of="tip") for reward in rewards if isinstance(reward, list) and reward
    ]
    return statistics.median_high([tip for tip in tips if tip] or [0])
