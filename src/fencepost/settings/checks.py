"""What no single setting can tell: whether they fit together."""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.settings.declaration import Settings
from fencepost.settings.display import mask, value_at
from fencepost.settings.refusals import not_allowed


def check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raises SettingError for the first pair that does not fit; both stand in the message with their sources."""
    for refused in (
        _leases(settings),
        _fees(settings),
        _bumps(settings),
        _keys(settings),
        _nonce_service(settings),
        _forwarding(settings),
        _chains(settings),
    ):
        if refused is not None:
            key, allowed, because = refused
            told = f", for {_told(because, settings, sources)}" if because else ""
            shown = mask(key, value_at(settings, key)) or '""'
            raise not_allowed(key=key, shown=shown, source=sources[key], allowed=allowed + told)


_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - what nobody can be sent to; nothing is bound here

# Key, what it must be, and the key of the other setting that asks for it, if one does.
Refused = tuple[str, str, str] | None


def _leases(settings: Settings) -> Refused:
    if settings.lease.renew_interval_s >= settings.lease.duration_s / 2:
        return "lease.renew_interval", "less than half of lease.duration", "lease.duration"
    return None


def _fees(settings: Settings) -> Refused:
    fees = settings.fees
    if fees.source != "fixed":
        return None
    if fees.fixed_fee_cap_wei == 0:
        return "fees.fixed_fee_cap", "above 0", "fees.source"
    if fees.fixed_tip_wei > fees.fixed_fee_cap_wei:
        return "fees.fixed_tip", "at most the fee cap", "fees.fixed_fee_cap"
    if fees.fixed_fee_cap_wei > fees.cap_wei:
        return "fees.fixed_fee_cap", "at most the cap of all prices", "fees.cap"
    return None


def _bumps(settings: Settings) -> Refused:
    if not settings.fees.bump.enabled:
        return None
    if not settings.resubmit.enabled:
        return "fees.bump.enabled", "false, since a price is only raised after resubmits", "resubmit.enabled"
    if 0 < settings.resubmit.max_attempts < settings.fees.bump.after_resubmits:
        return "fees.bump.after_resubmits", "at most the limit of resubmits", "resubmit.max_attempts"
    return None


def _keys(settings: Settings) -> Refused:
    if settings.keys.keystore_dir and not settings.keys.keystore_password_file:
        return "keys.keystore_password_file", "the path of a file", "keys.keystore_dir"
    return None


def _nonce_service(settings: Settings) -> Refused:
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


def _forwarding(settings: Settings) -> Refused:
    if not settings.routing.forward:
        return None
    if not settings.routing.secret:
        return "routing.secret", "given", "routing.forward"
    if settings.api.host in _EVERY_ADDRESS and not settings.node.url:
        return "node.url", "given, since others can't call every address", "api.host"
    return None


def _chains(settings: Settings) -> Refused:
    if settings.default_chain not in settings.chains:
        return "default_chain", f"a chain that is configured: {' or '.join(settings.chains)}", ""
    by_id: dict[int, str] = {}
    on_dev_chain = ""
    for name, chain in settings.chains.items():
        if chain.id and chain.id in by_id:
            return (
                f"chains.{name}.id",
                "different from that of any other chain",
                f"chains.{by_id[chain.id]}.id",
            )
        by_id[chain.id] = name
        if not chain.rpc_urls:
            if on_dev_chain:
                allowed = (
                    f"given, because {on_dev_chain} is the embedded dev chain already and there is only one"
                )
                return f"chains.{name}.rpc_urls", allowed, ""
            on_dev_chain = name
    return None


def _told(key: str, settings: Settings, sources: Mapping[str, str]) -> str:
    return f"{key} = {mask(key, value_at(settings, key))} ({sources[key]})"
