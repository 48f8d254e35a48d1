"""Translate the settings into those of a lane, and load its hook."""

from __future__ import annotations

from fencepost.adapters.evm.encoding import decode_signed
from fencepost.application.explain import LaneRules
from fencepost.application.hooks import StuckDecision, StuckHook, load_stuck_hook
from fencepost.application.lane import LaneSettings
from fencepost.bootstrap.fees import fixed_fees_of
from fencepost.domain.fees import FeeTier
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.transaction import UnsignedTx
from fencepost.domain.transaction_state import ManagedTx
from fencepost.settings import Settings
from fencepost.settings.schema.core import SignerSettings


async def mark_stuck(_tx: ManagedTx) -> StuckDecision:
    """Mark the transaction as stuck, and send nothing more for it. This is the default stuck hook."""
    return "mark"


def stuck_hook_of(settings: Settings) -> StuckHook:
    """Load the hook that the settings name; without one, stuck transactions are marked."""
    named = settings.resubmit.stuck_hook
    return load_stuck_hook(named) if named else mark_stuck


def lane_settings_for(settings: Settings, of_signer: SignerSettings) -> LaneSettings:
    """Combine the settings with those of one signer."""
    fees, bump = settings.fees, settings.fees.bump
    return LaneSettings(
        strict=of_signer.mode == "strict",
        start_from=of_signer.start_from,
        max_in_flight=of_signer.max_in_flight,
        chain_query=settings.nonce.chain_query,
        failover_loses_commits=settings.database.failover_loses_commits,
        shared_key=settings.nonce.shared_key,
        search_blocks=settings.nonce.search_blocks,
        state_timeout_s=settings.nonce.state_timeout_s,
        resubmit_enabled=settings.resubmit.enabled,
        resubmit_interval_s=settings.resubmit.interval_s,
        resubmit_max_attempts=settings.resubmit.max_attempts,
        stuck_after_resubmits=settings.resubmit.stuck_after,
        required=settings.confirmations.required,
        stale_receipt_timeout_s=settings.confirmations.stale_receipt_timeout_s,
        fetch_receipt_upon_entry=settings.confirmations.fetch_receipt_upon_entry,
        fixed_fees=fixed_fees_of(fees),
        fee_tier=FeeTier(fees.tier),
        min_bump_percent=fees.min_bump,
        filler_reserve_percent=fees.filler_reserve,
        price_required=fees.source == "disabled",
        fee_cap_wei=fees.cap_wei,
        bump_enabled=bump.enabled,
        bump_percent=bump.percent,
        bump_after_resubmits=bump.after_resubmits,
        low_balance_wei=settings.funds.low_balance_wei,
        low_balance_transactions=settings.funds.low_balance_transactions,
        gas_factor=settings.gas.estimate_factor,
        tx_gas_max=settings.gas.tx_max or None,
        refuse_reverting=settings.gas.refuse_reverting,
        history_max_entries=settings.history.max_entries,
        read_ahead=settings.lanes.read_ahead,
    )


def lane_rules(settings: Settings, signer: Signer) -> LaneRules:
    """Return the settings that explanations of a signer's transactions name."""
    of_signer = settings.signer_settings(signer.address)
    return LaneRules(
        window=of_signer.max_in_flight,
        is_strict=of_signer.mode == "strict",
        required=settings.confirmations.required,
        fee_cap_wei=settings.fees.cap_wei,
        bumps=settings.fees.bump.enabled and settings.fees.source != "fixed",
        resubmit_interval_s=settings.resubmit.interval_s,
        stalled_after_s=settings.explain.stalled_after_s,
    )


def decode_raw(raw: bytes) -> tuple[Address, UnsignedTx, TxHash]:
    """Decode signed bytes into sender, transaction and hash."""
    decoded = decode_signed(raw)
    return decoded.sender, decoded.tx, decoded.hash
