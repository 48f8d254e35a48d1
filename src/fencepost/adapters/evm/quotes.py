"""What a node suggests to pay, and how long that serves everybody.

One quote serves all signers for `FRESH_S`; when half of that has passed, the next who asks has it renewed without waiting.
So a busy node asks about twice a second, and nobody waits for a price but the first after a pause. Whoever comes while
the node is being asked shares that answer, or that error.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fencepost.adapters.evm import answers
from fencepost.adapters.evm.endpoints import Endpoint
from fencepost.domain.transaction import Fees
from fencepost.errors import RpcRefused

FRESH_S: Final = 1.0
_HISTORY_BLOCKS: Final = 5
_PERCENTILE: Final = 50


class Quotes:
    def __init__(self, ask: Callable[[], Awaitable[Fees]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._quoted: tuple[float, Fees] | None = None  # since when, and what
        self._asking: asyncio.Task[Fees] | None = None

    async def now(self) -> Fees:
        if self._quoted is not None:
            at_s, fees = self._quoted
            age_s = self._clock() - at_s
            if age_s < FRESH_S:
                if age_s >= FRESH_S / 2:
                    self._renew()
                return fees
        return await asyncio.shield(self._renew())

    def _renew(self) -> asyncio.Task[Fees]:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._renewed())
            self._asking.add_done_callback(self._settle)
        return self._asking

    async def _renewed(self) -> Fees:
        began_s = self._clock()
        fees = await self._ask()
        self._quoted = (began_s, fees)
        return fees

    def _settle(self, asked: asyncio.Task[Fees]) -> None:
        self._asking = None
        if not asked.cancelled():
            asked.exception()  # if nobody waited for it: the quote ages, and the next who asks hears why

    async def aclose(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})


async def quote(endpoint: Endpoint) -> Fees:
    try:
        said = await endpoint.rpc.call("eth_feeHistory", [hex(_HISTORY_BLOCKS), "latest", [_PERCENTILE]])
    except RpcRefused:
        said = None  # a chain from before EIP-1559
    base_fees = said.get("baseFeePerGas") if isinstance(said, dict) else None
    if not isinstance(base_fees, list) or not base_fees:
        gas_price_wei = await _gas_price_wei(endpoint)
        return Fees(fee_cap_wei=gas_price_wei, tip_wei=gas_price_wei)
    base_wei = answers.quantity(base_fees[-1], of="base fee")  # the last one is the next block's
    tip_wei = _median_tip_wei(said.get("reward"))
    if not tip_wei:
        # Blocks without transactions know no tip, and a tip of 0 is refused by many nodes.
        tip_wei = max(await _gas_price_wei(endpoint) - base_wei, 1)
    return Fees(fee_cap_wei=2 * base_wei + tip_wei, tip_wei=tip_wei)


async def _gas_price_wei(endpoint: Endpoint) -> int:
    return answers.quantity(await endpoint.rpc.call("eth_gasPrice"), of="gas price")


def _median_tip_wei(rewards: Any) -> int:
    """Of the blocks that had transactions; 0 when none had."""
    if not isinstance(rewards, list):
        return 0
    tips = [
        answers.quantity(reward[0], of="tip") for reward in rewards if isinstance(reward, list) and reward
    ]
    return statistics.median_high([tip for tip in tips if tip] or [0])
