"""Validate settings that depend on each other."""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.settings.display import mask, value_at
from fencepost.settings.errors import not_allowed_message
from fencepost.settings.schema.core import Settings


def check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raise SettingError for the first contradiction; the message names both settings with their sources."""
    for violation in (
        _leases(settings),
        _fees(settings),
        _bumps(settings),
        _keys(settings),
        _nonce_service(settings),
        _forwarding(settings),
        _chains(settings),
    ):
        if violation is not None:
            key, allowed, other = violation
            reason = f", because {_assignment(other, settings, sources)}" if other else ""
            shown = mask(key, value_at(settings, key)) or '""'
            raise not_allowed_message(key=key, shown=shown, source=sources[key], allowed=allowed + reason)


_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - addresses that other nodes can't call; nothing is bound here

# Key, what it must be, and the key of the other setting that requires it, if there is one.
Violation = tuple[str, str, str] | None


def _leases(settings: Settings) -> Violation:
    if settings.lease.renew_interval_s >= settings.lease.duration_s / 2:
        return "lease.renew_interval", "less than half of lease.duration", "lease.duration"
    return None


def _fees(settings: Settings) -> Violation:
    fees = settings.fees
    if fees.source == "gas_station":
        if not fees.gas_station.url:
            return "fees.gas_station.url", "given", "fees.source"
        if not fees.gas_station.normal_fee_cap:
            return "fees.gas_station.normal_fee_cap", "given", "fees.source"
    if fees.source != "fixed":
        return None
    if fees.fixed_fee_cap_wei == 0:
        return "fees.fixed_fee_cap", "above 0", "fees.source"
    if fees.fixed_tip_wei > fees.fixed_fee_cap_wei:
        return "fees.fixed_tip", "at most the fee cap", "fees.fixed_fee_cap"
    if fees.fixed_fee_cap_wei > fees.cap_wei:
        return "fees.fixed_fee_cap", "at most the cap of all prices", "fees.cap"
    return None


def _bumps(settings: Settings) -> Violation:
    if not settings.fees.bump.enabled:
        return None
    if not settings.resubmit.enabled:
        return "fees.bump.enabled", "false (bumps happen only after resubmits)", "resubmit.enabled"
    if 0 < settings.resubmit.max_attempts < settings.fees.bump.after_resubmits:
        return "fees.bump.after_resubmits", "at most the limit of resubmits", "resubmit.max_attempts"
    return None


def _keys(settings: Settings) -> Violation:
    if settings.keys.keystore_dir and not settings.keys.keystore_password_file:
        return "keys.keystore_password_file", "the path of a file", "keys.keystore_dir"
    return None


def _nonce_service(settings: Settings) -> Violation:
    chosen = settings.nonce_service
    if not chosen.enabled or chosen.redis_url:
        return None
    if chosen.scheme in ("redis_issue", "redis_full"):
        return "nonce_service.redis_url", "given", "nonce_service.scheme"
    if chosen.redis_lock:
        return "nonce_service.redis_url", "given", "nonce_service.redis_lock"
    for address, own in settings.signers.items():
        if own.scheme in ("redis_issue", "redis_full"):
            return "nonce_service.redis_url", "given", f"signers.{address}.scheme"
    return None


def _forwarding(settings: Settings) -> Violation:
    if not settings.routing.forward:
        return None
    if not settings.routing.secret:
        return "routing.secret", "given", "routing.forward"
    if settings.api.host in _EVERY_ADDRESS and not settings.node.url:
        return "node.url", "set (other nodes can't call a wildcard address)", "api.host"
    return None


def _chains(settings: Settings) -> Violation:
    if settings.default_chain not in settings.chains:
        return "default_chain", f"a configured chain: {' or '.join(settings.chains)}", ""
    by_id: dict[int, str] = {}
    on_dev_chain = ""
    for name, chain in settings.chains.items():
        if chain.id and chain.id in by_id:
            return (
                f"chains.{name}.id",
                "different from the id of every other chain",
                f"chains.{by_id[chain.id]}.id",
            )
        by_id[chain.id] = name
        if not chain.rpc_urls:
            if on_dev_chain:
                allowed = (
                    f"set, because {on_dev_chain} already uses the embedded dev chain and there is only one"
                )
                return f"chains.{name}.rpc_urls", allowed, ""
            on_dev_chain = name
    return None


def _assignment(key: str, settings: Settings, sources: Mapping[str, str]) -> str:
    return f"{key} = {mask(key, value_at(settings, key))} ({sources[key]})"
