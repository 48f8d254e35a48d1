"""From a transaction and a price to signed bytes for its nonce: first attempts, bumps and fillers alike."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.application.lane import Lane
from fencepost.domain import fees as pricing
from fencepost.domain.managed import Attempt, Kind, ManagedTx, Purpose
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType, UnsignedTx
from fencepost.errors import FencepostError, RpcError, WouldRevert

# How long a fee quote serves all lanes' new attempts of a signer before the node is asked again.
QUOTE_LIFE_S = 2.0

# A transfer to oneself costs this much gas by the protocol; some chains charge more, so the node is asked too.
TRANSFER_GAS = 21_000

# A transaction that needed more attempts than this has a problem that more attempts don't mend.
MOST_ATTEMPTS = 60

# What every transaction meets; Python 3.11 calls a function to find a member of an enumeration.
_FILLER, _HANDLER, _DYNAMIC_FEE = Purpose.FILLER, Kind.HANDLER, TxType.DYNAMIC_FEE


class AtFeeCap(FencepostError):
    """The least replacement that a node would take lies above the fee cap."""

    code = "fee_cap"


async def quote(lane: Lane) -> Fees:
    """What a new attempt should pay now, never above the cap."""
    if lane.policy.fixed_fees is not None:
        return pricing.within_cap(lane.policy.fixed_fees, lane.policy.fee_cap_wei)
    now_s = lane.clock.now_s()
    if lane.quoted is None or now_s - lane.quoted[0] > QUOTE_LIFE_S:
        lane.quoted = (now_s, await lane.chain.quote_fees())
    return pricing.within_cap(lane.quoted[1], lane.policy.fee_cap_wei)


async def replacement_fees(lane: Lane, tx: ManagedTx) -> Fees:
    """At least ten per cent over the last attempt, at least what is quoted now, never above the cap."""
    lane.quoted = None
    fees = pricing.replacement(
        tx.latest.fees,
        percent=lane.policy.bump_percent,
        cap_wei=lane.policy.fee_cap_wei,
        quote=await quote(lane),
    )
    if fees is None or len(tx.attempts) >= MOST_ATTEMPTS:
        raise AtFeeCap(
            f"attempt {len(tx.attempts)} pays {tx.latest.fees.fee_cap_wei} wei a gas;"
            f" a replacement would pass the cap of {lane.policy.fee_cap_wei} wei"
        )
    return fees


def unsigned(lane: Lane, tx: ManagedTx, *, nonce: int, gas: int, fees: Fees, purpose: Purpose) -> UnsignedTx:
    tx_type = tx.attempts[-1].type if tx.attempts else tx.intent.type
    if purpose is _FILLER:
        call = Call(to=tx.signer.address)
    elif tx.kind is _HANDLER:  # what the handler built is known from its bytes alone
        call = lane.decode(tx.attempts[0].signed.raw)[1].call
    else:
        call = tx.intent.call
    if tx_type is not _DYNAMIC_FEE:  # one price only
        fees = Fees(fee_cap_wei=fees.fee_cap_wei, tip_wei=fees.fee_cap_wei)
    return UnsignedTx(chain_id=tx.signer.chain_id, nonce=nonce, call=call, gas=gas, fees=fees, type=tx_type)


async def sign(
    lane: Lane, wanted: list[UnsignedTx], *, numbers: list[int], purpose: Purpose
) -> list[Attempt]:
    """All or nothing: a key that fails half-way leaves no half-made batch."""
    ahead, lane.signed_ahead = lane.signed_ahead, None
    if ahead is not None and wanted == [ahead[0]]:
        signed: Sequence[SignedTx] = [ahead[1]]
    else:
        signed = await lane.keys.sign(lane.signer.address, wanted)
    return made(wanted, signed, numbers=numbers, purpose=purpose)


def made(
    wanted: Sequence[UnsignedTx], signed: Sequence[SignedTx], *, numbers: Sequence[int], purpose: Purpose
) -> list[Attempt]:
    return [
        Attempt(number, purpose, tx.type, tx.gas, tx.fees, signed=bytes_)
        for tx, number, bytes_ in zip(wanted, numbers, signed, strict=True)
    ]


async def next_attempt(lane: Lane, tx: ManagedTx, *, purpose: Purpose) -> Attempt:
    """A replacement at the transaction's nonce."""
    fees = await replacement_fees(lane, tx) if tx.attempts else await quote(lane)
    gas = await filler_gas(lane) if purpose is Purpose.FILLER else tx.latest.gas
    wanted = unsigned(lane, tx, nonce=tx.held_nonce(), gas=gas, fees=fees, purpose=purpose)
    return (await sign(lane, [wanted], numbers=[len(tx.attempts) + 1], purpose=purpose))[0]


async def filler_gas(lane: Lane) -> int:
    try:
        estimate = await lane.chain.estimate_gas(lane.signer.address, Call(to=lane.signer.address))
    except (RpcError, WouldRevert):
        return TRANSFER_GAS  # an account that can't pay must still get its filler signed and waiting
    return max(
        TRANSFER_GAS, int(estimate * lane.policy.gas_factor) if estimate > TRANSFER_GAS else TRANSFER_GAS
    )
