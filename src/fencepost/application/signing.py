"""Price and sign the attempts of a transaction: first attempts, bumps and fillers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fencepost.application.lane import Lane
from fencepost.application.ports import KeyPort
from fencepost.application.spending_policy import over_budget
from fencepost.domain import fees as pricing
from fencepost.domain.fees import FeeLimit, FeeQuote
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType, UnsignedTx
from fencepost.domain.transaction_state import Attempt, Intent, Kind, ManagedTx, Purpose
from fencepost.errors import FencepostError, RpcError, SigningRefused, WouldRevert

# How long a lane uses a fee quote before it fetches a new one.
QUOTE_LIFE_S = 2.0

# A transfer to oneself costs this much gas by the protocol; some chains charge more, so the endpoint estimates it, too.
TRANSFER_GAS = 21_000

# A transaction that needed more attempts than this has a problem that more attempts do not solve.
MAX_ATTEMPTS = 60

# Looked up once: in Python 3.11 access to an enumeration member is a function call.
_FILLER, _HANDLER = Purpose.FILLER, Kind.HANDLER
_DYNAMIC_FEE, _ACCESS_LIST, _LEGACY = TxType.DYNAMIC_FEE, TxType.ACCESS_LIST, TxType.LEGACY


class AtFeeCap(FencepostError):
    """Report that the cheapest replacement that an endpoint would accept is above the limit."""

    code = "fee_cap"


class OverBudget(AtFeeCap):
    """Report that the attempt may cost more than is left of the signer's daily budget."""


class AboveFeeLimit(FencepostError):
    """Report that a transaction would pay more than its limit. Nothing was signed."""

    code = "fee_limit"


def operator_limit(lane: Lane, *, reserve_percent: int = 0) -> FeeLimit:
    """Return the lower of the chain's cap, with the reserve of fillers added to it, and the signer's policy."""
    cap_wei = lane.settings.fee_cap_wei * (100 + reserve_percent) // 100
    source = "fees.cap with fees.filler_reserve" if reserve_percent else "fees.cap"
    limit = FeeLimit(Fees(fee_cap_wei=cap_wei, tip_wei=cap_wei), source)
    if lane.sending.limits is not None and (policy_wei := lane.sending.limits.fee_cap_max_wei) is not None:
        limit = limit.lowered(Fees(fee_cap_wei=policy_wei, tip_wei=policy_wei), "the policy's feeCapMax")
    return limit


def fee_limit(lane: Lane, tx: ManagedTx, purpose: Purpose) -> FeeLimit:
    """Return the lowest of the limits that apply to a signature.

    The caller's maximum is a limit on the caller's own transaction. A filler carries out no intent of the caller: only
    the limits of the operator apply to it, or a transaction at the caller's maximum could not be cancelled. It may use
    `fees.filler_reserve` above the chain's cap, or a transaction at the cap could not be.
    """
    limit = operator_limit(
        lane, reserve_percent=lane.settings.filler_reserve_percent if purpose is _FILLER else 0
    )
    if tx.intent.fees is not None and purpose is not _FILLER:
        limit = limit.lowered(tx.intent.fees, "the caller's maximum fee")
    return limit


def require_within_limit(lane: Lane, tx: ManagedTx, unsigned: UnsignedTx, purpose: Purpose) -> None:
    """Raise `AboveFeeLimit` unless the transaction pays at most what it may. Every signature passes this check."""
    limit = fee_limit(lane, tx, purpose)
    if not limit.allows(unsigned.fees, unsigned.type):
        raise AboveFeeLimit(
            f"pays {unsigned.fees.fee_cap_wei} wei per gas with a tip of {unsigned.fees.tip_wei} wei;"
            f" {limit.source} allows {limit.fees.fee_cap_wei} wei with a tip of {limit.fees.tip_wei} wei"
        )

    gas_max = None if lane.sending.limits is None else lane.sending.limits.gas_max
    if gas_max is not None and unsigned.gas > gas_max and purpose is not _FILLER:
        raise AboveFeeLimit(f"a gas limit of {unsigned.gas} is more than the policy's gasMax of {gas_max}")


async def refresh_limits(lane: Lane) -> None:
    """Read the signer's policy, which is cached for a second."""
    if lane.ports.spending is not None:
        lane.sending.limits = await lane.ports.spending.limits_of(lane.signer)


async def reserve(lane: Lane, tx: ManagedTx, unsigned: UnsignedTx, purpose: Purpose) -> str | None:
    """Reserve what the attempt may cost in the signer's daily budget; return the reason if it cannot be reserved.

    A filler is counted, but never stopped: while its nonce is not consumed, everything behind it waits.
    """
    sending = lane.sending
    if lane.ports.spending is None or sending.limits is None or sending.limits.daily_wei_max is None:
        return None
    value_wei = unsigned.call.value_wei
    wei = value_wei + unsigned.gas * unsigned.fees.fee_cap_wei
    if await lane.ports.spending.reserve(
        lane.signer, tx.tx_id, value_wei=value_wei, wei=wei, force=purpose is _FILLER
    ):
        return None
    return over_budget(wei, sending.limits)


async def market(lane: Lane, tx: ManagedTx | None = None) -> Fees:
    """Return what the chain's price source suggests to pay now, whatever the limits are."""
    sending, ports = lane.sending, lane.ports
    now_s = lane.now_s()
    if sending.quoted is None or now_s - sending.quoted[0] > QUOTE_LIFE_S:
        quoted = await (ports.chain.quote_fees() if ports.fees is None else ports.fees.quote())
        sending.quoted = (now_s, quoted)
    return _of_tier(lane, sending.quoted[1], tx)


def _of_tier(lane: Lane, quoted: FeeQuote, tx: ManagedTx | None) -> Fees:
    own = None if tx is None else tx.intent.tier
    return quoted.of(lane.settings.fee_tier if own is None else own)


async def quote(lane: Lane, purpose: Purpose = Purpose.INTENT, tx: ManagedTx | None = None) -> Fees:
    """Return what a new attempt should pay now: the fixed price exactly, or what the price source suggests.

    The transaction's tier counts, else the signer's. A filler pays the suggestion if that is more than the fixed price: at
    the fixed price it would be replaced by a slightly higher one again and again. The result is never above the limits of
    the operator, the chain's cap and the signer's policy.
    """
    await refresh_limits(lane)
    fixed = lane.settings.fixed_fees
    if fixed is None:
        suggested = await market(lane, tx)
    elif purpose is _FILLER:
        suggested = pricing.higher(fixed, await market(lane, tx))
    else:
        suggested = fixed
    return pricing.within(suggested, operator_limit(lane).fees)


def first_fees(lane: Lane, tx: ManagedTx, quoted: Fees) -> Fees:
    """Return what the first attempt of a transaction pays: what its caller says, else what is quoted.

    A maximum becomes the price itself where transactions have only one: there it pays what is quoted up to the maximum.
    """
    requested = tx.intent.fees
    if requested is None:
        latest = lane.sending.quoted
        if tx.intent.tier is None or latest is None or lane.settings.fixed_fees is not None:
            return quoted
        return pricing.within(latest[1].of(tx.intent.tier), operator_limit(lane).fees)
    if tx.intent.type is _DYNAMIC_FEE and not lane.ports.chain_view.accepts_dynamic_fees:
        return pricing.within(quoted, pricing.fees_for_type(requested, _LEGACY))
    return requested


def fee_source(lane: Lane, tx: ManagedTx, purpose: Purpose) -> str:
    """Return where the price of an attempt that is signed now came from."""
    if purpose is not _FILLER:
        if not tx.attempts and tx.kind is _HANDLER:
            return "handler"
        if not tx.attempts and tx.intent.fees is not None:
            return "request"
        if lane.settings.fixed_fees is not None:
            return "fixed"
    return "" if lane.sending.quoted is None else lane.sending.quoted[1].source


def may_reprice(lane: Lane, tx: ManagedTx) -> bool:
    """Return whether a rejected price may be replaced by a higher one without an operator command.

    Fillers are always repriced: their nonce has to be consumed, or everything behind them waits.
    """
    if tx.latest.purpose is _FILLER:
        return True
    return lane.settings.bump_enabled and lane.settings.fixed_fees is None


def is_free(fees: Fees) -> bool:
    """Return whether gas costs nothing."""
    return fees.fee_cap_wei == 0


async def replacement_fees(lane: Lane, tx: ManagedTx, purpose: Purpose, at_least: Fees | None = None) -> Fees:
    """Return the fees of a replacement: above the last attempt by the configured percentage, at least the quote.

    `at_least` raises the price further. Raises `AtFeeCap` if the limit is lower.
    """
    lane.sending.quoted = None
    limit = fee_limit(lane, tx, purpose)
    fixed = lane.settings.fixed_fees if purpose is not _FILLER else None
    if fixed is not None:
        limit = limit.lowered(fixed, "the fixed price (fees.fixed_fee_cap)")
    tx_type, quoted = tx.latest.type, await quote(lane, purpose, tx)
    fees = pricing.replacement(
        tx.latest.fees,
        percent=lane.settings.bump_percent,
        min_percent=lane.settings.min_bump_percent,
        limit=pricing.fees_for_type(limit.fees, tx_type),
        quote=pricing.fees_for_type(
            quoted if at_least is None else pricing.higher(quoted, at_least), tx_type
        ),
    )
    if fees is not None and is_free(quoted) and is_free(tx.latest.fees) and purpose is not _FILLER:
        raise AtFeeCap("gas costs nothing on this chain, so a better price would not help")
    if fees is None or (fixed is not None and fees != pricing.fees_for_type(fixed, tx_type)):
        raise AtFeeCap(
            f"attempt {len(tx.attempts)} pays {tx.latest.fees.fee_cap_wei} wei per gas; a replacement would exceed"
            f" {limit.source}, {limit.fees.fee_cap_wei} wei"
        )
    if len(tx.attempts) >= MAX_ATTEMPTS:
        raise AtFeeCap(f"it has {len(tx.attempts)} attempts, and more would not help")
    return fees


def build_unsigned(
    lane: Lane, tx: ManagedTx, *, nonce: int, gas: int, fees: Fees, purpose: Purpose
) -> UnsignedTx:
    tx_type = tx.attempts[-1].type if tx.attempts else tx.intent.type
    if tx_type is _DYNAMIC_FEE and not lane.ports.chain_view.accepts_dynamic_fees:
        tx_type = _ACCESS_LIST if tx.intent.call.access_list and purpose is not _FILLER else _LEGACY
    if purpose is _FILLER:
        call = Call(to=tx.signer.address)
    elif tx.kind is _HANDLER:  # what the handler built is known from its bytes alone
        call = lane.ports.decode(tx.attempts[0].signed.raw)[1].call
    else:
        call = tx.intent.call
    prices = pricing.fees_for_type(fees, tx_type)
    return UnsignedTx(tx.signer.chain_id, nonce, call, gas, prices, tx_type)


class Batch(NamedTuple):
    """Hold transactions of one lane that are signed together, and what is to be signed for each."""

    lane: Lane
    txs: Sequence[ManagedTx]
    unsigned: Sequence[UnsignedTx]
    purpose: Purpose = Purpose.INTENT

    def check(self) -> None:
        for tx, unsigned in zip(self.txs, self.unsigned, strict=True):
            require_within_limit(self.lane, tx, unsigned, self.purpose)

    async def admit(self) -> None:
        """Check all against the limits that hold now, and reserve what they may cost."""
        await refresh_limits(self.lane)
        self.check()
        for tx, unsigned in zip(self.txs, self.unsigned, strict=True):
            if (reason := await reserve(self.lane, tx, unsigned, self.purpose)) is not None:
                raise OverBudget(reason)

    def attempts(self, signed: Sequence[SignedTx]) -> list[Attempt]:
        return [
            Attempt(
                len(tx.attempts) + 1,
                self.purpose,
                unsigned.type,
                unsigned.gas,
                unsigned.fees,
                signed=bytes_,
                fee_source=fee_source(self.lane, tx, self.purpose),
            )
            for tx, unsigned, bytes_ in zip(self.txs, self.unsigned, signed, strict=True)
        ]


async def sign(batch: Batch) -> list[Attempt]:
    """Sign all transactions of a batch or none, after checking them against the limits that hold now."""
    await batch.admit()
    return batch.attempts(await batch.lane.ports.keys.sign(batch.lane.signer.address, batch.unsigned))


async def sign_singly(batch: Batch) -> list[Attempt | SigningRefused]:
    """Sign each transaction by itself, after a batch failed because one of them was refused.

    Raises `SigningError` when a signature could not be had for any other reason.
    """
    await batch.admit()
    address = batch.lane.signer.address
    results: list[Attempt | SigningRefused] = []
    answers = await batch.lane.ports.keys.sign_each([(address, [unsigned]) for unsigned in batch.unsigned])
    for tx, unsigned, answer in zip(batch.txs, batch.unsigned, answers, strict=True):
        if isinstance(answer, SigningRefused):
            results.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            results += Batch(batch.lane, [tx], [unsigned], batch.purpose).attempts(answer)
    return results


async def signs_fillers(lane: Lane, tx: ManagedTx, *, nonce: int) -> bool:
    """Return whether the key signs a filler for this account. The signed bytes are dropped."""
    plain = tx.changed(
        intent=Intent(call=Call(to=tx.signer.address))
    )  # of the usual type, whatever the request's is
    unsigned = build_unsigned(
        lane,
        plain,
        nonce=nonce,
        gas=TRANSFER_GAS,
        fees=await quote(lane, Purpose.FILLER),
        purpose=Purpose.FILLER,
    )
    require_within_limit(lane, plain, unsigned, Purpose.FILLER)
    try:
        await lane.ports.keys.sign(lane.signer.address, [unsigned])
    except SigningRefused:
        return False
    return True


async def sign_each(batches: Sequence[Batch]) -> list[list[Attempt] | Exception]:
    """Sign the batches of several lanes with the same keys; a batch that fails has its error in its place.

    The caller has reserved what they may cost (`admit`) where a spending policy applies.
    """
    keys = batches[0].lane.ports.keys
    results = [_signed_ahead(batch) for batch in batches]
    wanted = [batch for batch, result in zip(batches, results, strict=True) if result is None]
    signed = iter(await _sign_all(keys, wanted) if wanted else ())
    return [
        _attempts(batch, next(signed) if result is None else result)
        for batch, result in zip(batches, results, strict=True)
    ]


async def _sign_all(keys: KeyPort, batches: Sequence[Batch]) -> Sequence[Sequence[SignedTx] | BaseException]:
    to_sign = [(batch.lane.signer.address, batch.unsigned) for batch in batches]
    if len(to_sign) > 1:
        return await keys.sign_each(to_sign)
    try:
        return [await keys.sign(*to_sign[0])]
    except Exception as error:  # noqa: BLE001 - it is the result of this batch
        return [error]


def _signed_ahead(batch: Batch) -> Sequence[SignedTx] | Exception | None:
    """Return bytes that were signed ahead for exactly this, or the limit that forbids the batch, or None: it is to be signed."""
    sending = batch.lane.sending
    ahead, sending.signed_ahead = sending.signed_ahead, None
    try:
        batch.check()
    except FencepostError as error:
        return error
    return [ahead[1]] if ahead is not None and batch.unsigned == [ahead[0]] else None


def _attempts(batch: Batch, result: Sequence[SignedTx] | BaseException) -> list[Attempt] | Exception:
    if isinstance(result, Exception):
        return result
    if isinstance(result, BaseException):  # a cancellation is no result
        raise result
    return batch.attempts(result)


async def sign_ahead(lane: Lane, tx: ManagedTx, unsigned: UnsignedTx) -> None:
    """Sign what is expected to come next. `sign_each` uses the bytes if it gets exactly this transaction."""
    if lane.sending.limits is not None:
        return  # its spending policy is checked when its turn comes
    require_within_limit(lane, tx, unsigned, Purpose.INTENT)
    (signed,) = await lane.ports.keys.sign(lane.signer.address, [unsigned])
    lane.sending.signed_ahead = unsigned, signed


async def handler_attempt(lane: Lane, tx: ManagedTx, unsigned: UnsignedTx, signed: SignedTx) -> Attempt:
    """Take bytes that a handler signed as an attempt, if they keep to the limits."""
    batch = Batch(lane, [tx], [unsigned])
    await batch.admit()
    return batch.attempts([signed])[0]


async def next_attempt(
    lane: Lane, tx: ManagedTx, *, purpose: Purpose, at_least: Fees | None = None
) -> Attempt:
    """Sign a replacement at the transaction's nonce, which pays at least `at_least` if the limits allow it."""
    fees = await replacement_fees(lane, tx, purpose, at_least) if tx.attempts else await quote(lane, purpose)
    gas = await filler_gas(lane) if purpose is Purpose.FILLER else tx.latest.gas
    unsigned = build_unsigned(lane, tx, nonce=tx.held_nonce(), gas=gas, fees=fees, purpose=purpose)
    return (await sign(Batch(lane, [tx], [unsigned], purpose)))[0]


async def retyped_attempt(lane: Lane, tx: ManagedTx) -> Attempt | None:
    """Sign the latest attempt again as a type that a chain without EIP-1559 takes; None if it is of such a type.

    It pays what is quoted, at most what it offered before: no pool holds anything that it would have to outbid.
    """
    lane.ports.chain_view.rejects_dynamic_fees = True
    last = tx.latest
    fees = pricing.within(await quote(lane), pricing.fees_for_type(last.fees, _LEGACY))
    unsigned = build_unsigned(lane, tx, nonce=tx.held_nonce(), gas=last.gas, fees=fees, purpose=last.purpose)
    if unsigned.type is last.type:
        return None
    return (await sign(Batch(lane, [tx], [unsigned], last.purpose)))[0]


def with_margin(lane: Lane, estimate: int) -> int:
    """Return the gas limit for an estimate: more than it, but not above what a block and a transaction may hold."""
    limits = [limit for limit in (lane.settings.tx_gas_max, lane.ports.chain_view.gas_limit) if limit]
    return max(estimate, min([math.ceil(estimate * lane.settings.gas_factor), *limits]))


async def filler_gas(lane: Lane) -> int:
    try:
        estimate = await lane.ports.chain.estimate_gas(lane.signer.address, Call(to=lane.signer.address))
    except (RpcError, WouldRevert):
        return TRANSFER_GAS  # an account that can't pay must still get its filler signed and waiting
    return with_margin(lane, estimate) if estimate > TRANSFER_GAS else TRANSFER_GAS
