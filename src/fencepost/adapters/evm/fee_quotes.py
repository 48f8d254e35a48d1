"""Cache the endpoint's fee quote for all signers.

A quote of endpoints is valid for `FRESH_S`, one of a gas station for as long as its setting says; after half of that, the next caller starts a refresh without waiting for it. So a busy node
refreshes about twice per second, and only the first caller after a pause waits. Callers during a refresh share its result
or its error.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Any, Final

from fencepost.adapters.evm import decoding
from fencepost.adapters.evm.endpoints import Endpoint
from fencepost.domain.fees import FeeQuote
from fencepost.domain.struct import Struct
from fencepost.domain.transaction import Fees
from fencepost.errors import RpcRefused

FRESH_S: Final = 1.0


class FeeQuotes:
    def __init__(
        self, ask: Callable[[], Awaitable[FeeQuote]], clock: Callable[[], float], fresh_s: float = FRESH_S
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._fresh_s = fresh_s
        self._latest: tuple[float, FeeQuote] | None = None  # since when, and what
        self._refresh_task: asyncio.Task[FeeQuote] | None = None

    async def now(self) -> FeeQuote:
        if self._latest is not None:
            at_s, fees = self._latest
            age_s = self._clock() - at_s
            if age_s < self._fresh_s:
                if age_s >= self._fresh_s / 2:
                    self._start_refresh()
                return fees
        return await asyncio.shield(self._start_refresh())

    def _start_refresh(self) -> asyncio.Task[FeeQuote]:
        if self._refresh_task is None:
            self._refresh_task = asyncio.get_running_loop().create_task(self._refresh())
            self._refresh_task.add_done_callback(self._on_refreshed)
        return self._refresh_task

    async def _refresh(self) -> FeeQuote:
        started_s = self._clock()
        fees = await self._ask()
        self._latest = (started_s, fees)
        return fees

    def _on_refreshed(self, task: asyncio.Task[FeeQuote]) -> None:
        self._refresh_task = None
        if not task.cancelled():
            task.exception()  # mark as retrieved if no caller waited; the quote ages, and the next caller gets the error

    async def aclose(self) -> None:
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.wait({self._refresh_task})


class HistoryQuery(Struct, frozen=True):
    """Say how endpoints' fee histories become a quote: over how many blocks, and with which percentile per tier."""

    blocks: int = 20
    percentiles: tuple[int, int, int, int] = (10, 50, 75, 95)
    is_legacy: bool = False  # use eth_gasPrice only


# Of the next block's base fee, in percent: how far it may rise before a transaction of the tier has to wait. Only the base
# fee itself is paid, so a higher multiple costs nothing while the base fee stays.
_BASE_FEE_PERCENT: Final = (125, 200, 200, 300)
_USUAL: Final = HistoryQuery()


async def quote(endpoint: Endpoint, query: HistoryQuery = _USUAL) -> FeeQuote:
    """Ask an endpoint for the fee history, or for the gas price where there is none."""
    history = None if query.is_legacy else await _fee_history(endpoint, query)
    base_fees = history.get("baseFeePerGas") if isinstance(history, dict) else None
    if not isinstance(history, dict) or not isinstance(base_fees, list) or not base_fees:
        gas_price_wei = await _gas_price_wei(endpoint)
        source = "legacy" if query.is_legacy else "node"
        return FeeQuote.flat(Fees(fee_cap_wei=gas_price_wei, tip_wei=gas_price_wei), source)
    base_wei = decoding.quantity(base_fees[-1], of="base fee")  # the last one is the next block's
    tips = [_median_tip_wei(history.get("reward"), index) for index in range(len(query.percentiles))]
    if not all(tips):
        # Blocks without transactions have no tip. Many nodes reject a tip of 0, unless gas costs nothing at all.
        gas_price_wei = await _gas_price_wei(endpoint)
        usual_wei = max(gas_price_wei - base_wei, 0) or (1 if base_wei else 0)
        tips = [tip_wei or usual_wei for tip_wei in tips]
    tips = list(accumulate(tips, max))  # a tier never pays less than the one below it
    slow, normal, fast, urgent = (
        Fees(fee_cap_wei=base_wei * percent // 100 + tip_wei, tip_wei=tip_wei)
        for percent, tip_wei in zip(_BASE_FEE_PERCENT, tips, strict=True)
    )
    return FeeQuote(slow, normal, fast, urgent)


async def _fee_history(endpoint: Endpoint, query: HistoryQuery) -> Any:
    wanted = sorted(query.percentiles)  # endpoints reject any other order
    try:
        return await endpoint.rpc.call("eth_feeHistory", [hex(query.blocks), "latest", wanted])
    except RpcRefused:
        return None  # a chain from before EIP-1559


async def _gas_price_wei(endpoint: Endpoint) -> int:
    return decoding.quantity(await endpoint.rpc.call("eth_gasPrice"), of="gas price")


def _median_tip_wei(rewards: Any, index: int) -> int:
    """Return the median tip, at one percentile, of the blocks that have transactions; 0 if none has."""
    if not isinstance(rewards, list):
        return 0
    tips = [
        decoding.quantity(reward[min(index, len(reward) - 1)], of="tip")
        for reward in rewards
        if isinstance(reward, list) and reward
    ]
    return statistics.median_high([tip for tip in tips if tip] or [0])
