"""Choose the price source of a chain, and fall back when it fails.

The order is: what the request says (`signing.first_fees`), the configured source, its last quote while that is recent, the
endpoints. Each quote names its source, and so does each attempt that is signed with it.

A source may lie. A gas station is compared with the endpoints: a price above `relative_limit` times theirs is not used.
Endpoints are compared with their own quote of the last minute: a price that jumps further is cut, so one wrong answer costs
little, and a market that really rises is followed within a few quotes. Prices up to `relative_floor` are never cut. The
limits of caller, policy and chain hold besides, at the signature.

Nothing here is stored. A crash loses a cached quote only, and a price changes neither nonce nor intent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from fencepost.application.ports import Chain, Clock
from fencepost.domain.fees import FeeQuote
from fencepost.domain.transaction import Fees
from fencepost.errors import FeeSourceError, RpcError

# How long the last quote replaces a source that fails, and counts as a reference for the next one.
MAX_QUOTE_AGE_S: Final = 60.0

_CACHE: Final = "cache"


class GasStation(Protocol):
    """A service outside the chain that suggests prices."""

    async def quote(self) -> FeeQuote:
        """Return what it suggests now. Raises `FeeSourceError`."""
        ...


@dataclass(slots=True)
class FeeSources:
    """The price source of one chain."""

    chain: Chain
    clock: Clock
    configured: str = "node"  # the setting fees.source
    station: GasStation | None = None
    fixed: Fees | None = None  # shown to callers; a lane has it in its settings
    cap_wei: int = 500_000_000_000
    relative_limit: int = 5  # 0: none
    relative_floor_wei: int = 10_000_000_000
    on_limited: Callable[[str], None] = lambda _reason: None
    _last: tuple[float, FeeQuote] | None = None

    async def quote(self) -> FeeQuote:
        """Return what to pay now by the configured source, or by the next one that answers.

        Raises `RpcError` if none does.
        """
        station = self.station
        if station is None:
            return await self._of_endpoints()
        try:
            quoted = await station.quote()
        except FeeSourceError:
            return self._cached() or await self.chain.quote_fees()
        try:
            usual = await self.chain.quote_fees()
        except RpcError:
            return self._kept(quoted)  # nothing to compare it with; the cap holds
        if self._limited(quoted, usual) != quoted:
            self.on_limited(
                f"the gas station suggests {quoted.normal.fee_cap_wei} wei, more than {self.relative_limit} times the"
                f" endpoints' {usual.normal.fee_cap_wei} wei; theirs is used"
            )
            return usual
        return self._kept(quoted)

    async def offered(self) -> FeeQuote:
        """Return what a request without a price would pay now, before the limits."""
        return await self.quote() if self.fixed is None else FeeQuote.flat(self.fixed, "fixed")

    async def _of_endpoints(self) -> FeeQuote:
        try:
            quoted = await self.chain.quote_fees()
        except RpcError:
            cached = self._cached()
            if cached is None:
                raise
            return cached
        last = self._recent()
        limited = quoted if last is None else self._limited(quoted, last)
        if limited != quoted:
            self.on_limited(
                f"endpoints suggest {quoted.normal.fee_cap_wei} wei, more than {self.relative_limit} times what they"
                f" suggested before; {limited.normal.fee_cap_wei} wei is used"
            )
        return self._kept(limited)

    def _limited(self, quoted: FeeQuote, reference: FeeQuote) -> FeeQuote:
        if not self.relative_limit:
            return quoted
        return quoted.limited(
            times=self.relative_limit, reference=reference, floor_wei=self.relative_floor_wei
        )

    def _kept(self, quoted: FeeQuote) -> FeeQuote:
        self._last = (self.clock.now_s(), quoted)
        return quoted

    def _recent(self) -> FeeQuote | None:
        if self._last is None or self.clock.now_s() - self._last[0] > MAX_QUOTE_AGE_S:
            return None
        return self._last[1]

    def _cached(self) -> FeeQuote | None:
        last = self._recent()
        return None if last is None else last.changed(source=_CACHE)
