"""Build the price source of each chain from the settings."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from fencepost.adapters.evm.fee_quotes import HistoryQuery
from fencepost.adapters.evm.gas_station import HttpGasStation, Pointers, StationSettings
from fencepost.application.fee_sources import FeeSources
from fencepost.application.ports import Chain, Clock
from fencepost.domain.fees import FeeTier
from fencepost.domain.transaction import Fees
from fencepost.settings.schema.core import FeeSettings, GasStationSettings

_log = logging.getLogger(__name__)


def fixed_fees_of(fees: FeeSettings) -> Fees | None:
    """Return the fixed price, or None if fees.source is not fixed."""
    if fees.source != "fixed":
        return None
    return Fees(fee_cap_wei=fees.fixed_fee_cap_wei, tip_wei=fees.fixed_tip_wei)


def history_query_of(fees: FeeSettings) -> HistoryQuery:
    """Return how the endpoints of a chain are asked for prices."""
    percentiles = fees.percentiles
    return HistoryQuery(
        blocks=fees.history_blocks,
        percentiles=(percentiles.slow, percentiles.normal, percentiles.fast, percentiles.urgent),
        is_legacy=fees.source == "legacy",
    )


def open_fee_sources(fees: FeeSettings, chain: Chain, clock: Clock, stack: AsyncExitStack) -> FeeSources:
    """Open the price source of a chain; the stack closes it."""
    station: HttpGasStation | None = None
    if fees.source == "gas_station":
        station = HttpGasStation(_station_settings(fees.gas_station))
        stack.push_async_callback(station.aclose)
    return FeeSources(
        chain,
        clock,
        configured=fees.source,
        station=station,
        fixed=fixed_fees_of(fees),
        cap_wei=fees.cap_wei,
        relative_limit=fees.relative_limit,
        relative_floor_wei=fees.relative_floor_wei,
        on_limited=lambda reason: _log.warning("chain %s: %s", chain.chain_id, reason),
    )


def _station_settings(gas_station: GasStationSettings) -> StationSettings:
    pointers = {
        FeeTier.SLOW: (gas_station.slow_fee_cap, gas_station.slow_tip),
        FeeTier.NORMAL: (gas_station.normal_fee_cap, gas_station.normal_tip),
        FeeTier.FAST: (gas_station.fast_fee_cap, gas_station.fast_tip),
        FeeTier.URGENT: (gas_station.urgent_fee_cap, gas_station.urgent_tip),
    }
    return StationSettings(
        url=gas_station.url,
        tiers={tier: Pointers(fee_cap, tip) for tier, (fee_cap, tip) in pointers.items() if fee_cap},
        headers=gas_station.headers,
        unit=gas_station.unit,
        cache_s=gas_station.cache_s,
        timeout_s=gas_station.timeout_s,
    )
