"""Check that the account can pay for a request before the request gets a nonce.

The maximum cost of a transaction is its value plus its gas limit at its fee cap; transactions that wait for a block count
with their maximum cost, too. A request that the balance does not cover stays in the queue as UNFUNDED, and its error names
the missing amount; it continues when the balance suffices. The check is optional: if the endpoint does not return the
balance, nothing stops, and the endpoint itself rejects the bytes.

A reading of the balance is valid as long as a reading of the chain's nonce. The cost of new allocations is subtracted from
it, so the balance is read again only when it gets short.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fencepost.application.lane import Lane
from fencepost.application.lane_parts import Funds
from fencepost.domain import transaction_state
from fencepost.domain.states import SubState
from fencepost.domain.transaction import Fees
from fencepost.domain.transaction_state import Attempt, Kind, ManagedTx, Purpose
from fencepost.errors import RpcError

# How long the queue waits when the account can't pay for its head; shorter if only transactions in flight use the balance.
FUNDS_RETRY_S: Final = 5.0
IN_FLIGHT_RETRY_S: Final = 1.0

MIN_READING_LIFE_S: Final = 1.0

# The end of the error text of a request that waits for funds.
SENT_LATER_TEXT: Final = "; it is sent when the balance suffices"

# An unknown balance covers everything.
_UNLIMITED_WEI: Final = 2**512

# The error on a request is updated when the missing amount changes by more than one part in this many.
_SIGNIFICANT_PART: Final = 10


def cost_wei(tx: ManagedTx, gas: int, fees: Fees) -> int:
    return tx.intent.call.value_wei + gas * fees.fee_cap_wei


def is_covered(lane: Lane, wei: int) -> bool:
    """Return whether the last reading covers the amount; False if it is too old."""
    funds = lane.sending.funds
    return funds is not None and _is_fresh(lane, funds) and wei <= funds.left_wei


def spend(lane: Lane, wei: int) -> None:
    """Subtract the cost of new allocations from the last reading."""
    sending = lane.sending
    if sending.funds is not None:
        sending.funds = sending.funds.changed(left_wei=sending.funds.left_wei - wei)


async def read(lane: Lane) -> Funds:
    sending = lane.sending
    now_s = lane.now_s()
    try:
        balance_wei = await lane.ports.chain.balance_wei(lane.signer.address)
    except RpcError:
        sending.funds = Funds(now_s, _UNLIMITED_WEI, 0, _UNLIMITED_WEI)
        return sending.funds
    in_flight_wei = sum(_max_cost_wei(lane, tx) for tx in lane.unmined)
    sending.funds = Funds(now_s, balance_wei, in_flight_wei, balance_wei - in_flight_wei)
    return sending.funds


async def refresh(lane: Lane) -> None:
    """Read the balance unless the last reading is still valid."""
    if lane.sending.funds is None or not _is_fresh(lane, lane.sending.funds):
        await read(lane)


async def wait_for_funds(lane: Lane, tx: ManagedTx, needed_wei: int, *, node_text: str = "") -> None:
    """Pause the queue and record on the request what is missing. `node_text` is the endpoint's error text, if it reported this.

    If the balance covers the request without the transactions in flight, this is recorded only the second time: they may
    be mined by then.
    """
    sending = lane.sending
    now_s = lane.now_s()
    funds = sending.funds or await read(lane)
    missing_wei = needed_wei - funds.left_wei
    exceeds_balance_alone = needed_wei > funds.balance_wei or missing_wei <= 0
    pause_s = FUNDS_RETRY_S if exceeds_balance_alone else IN_FLIGHT_RETRY_S
    sending.allocation_paused_until_s = now_s + pause_s
    is_seen_before, sending.short_of_funds = sending.short_of_funds == tx.tx_id, tx.tx_id
    if not (exceeds_balance_alone or is_seen_before):
        return
    text = _missing_text(lane, funds, needed_wei, missing_wei, node_text)
    if tx.sub_state is SubState.UNFUNDED and not _is_significant(tx, missing_wei, text):
        return
    detail = {
        "missingWei": str(max(0, missing_wei)),
        "neededWei": str(needed_wei),
        "balanceWei": str(funds.balance_wei),
        "inFlightWei": str(funds.in_flight_wei),
    }
    lane.ports.observer.note(
        "unfunded", signer=lane.signer, tx=tx.tx_id, missing_wei=missing_wei, reason=text
    )
    await lane.commit(
        [lane.change(tx, partial(transaction_state.mark_unfunded, reason=text, detail=detail))], op="unfunded"
    )


def _missing_text(lane: Lane, funds: Funds, needed_wei: int, missing_wei: int, node_text: str) -> str:
    """Return the error text. It starts like the endpoints' text, because clients match on these words."""
    text = (
        f"insufficient funds for gas * price + value: address {lane.signer.address}"
        f" have {funds.balance_wei} want {needed_wei + funds.in_flight_wei}"
    )
    if missing_wei <= 0:
        return f"{text}; the endpoint reports: {node_text}" if node_text else text
    in_flight = f", {funds.in_flight_wei} wei of it for transactions in flight" if funds.in_flight_wei else ""
    return f"{text}{in_flight}; {missing_wei} wei are missing{SENT_LATER_TEXT}"


def _is_significant(tx: ManagedTx, missing_wei: int, text: str) -> bool:
    before = transaction_state.missing_wei(tx)
    if before is None or missing_wei <= 0:
        return tx.error != text
    return abs(missing_wei - before) * _SIGNIFICANT_PART > before


def _max_cost_wei(lane: Lane, tx: ManagedTx) -> int:
    """Return the maximum cost of a transaction over all its attempts."""
    return max((_attempt_wei(lane, tx, attempt) for attempt in tx.attempts), default=0)


def _attempt_wei(lane: Lane, tx: ManagedTx, attempt: Attempt) -> int:
    value_wei = 0
    if attempt.purpose is Purpose.INTENT:
        built = tx.kind is Kind.HANDLER
        value_wei = (lane.ports.decode(attempt.signed.raw)[1].call if built else tx.intent.call).value_wei
    return value_wei + attempt.gas * attempt.fees.fee_cap_wei


def _is_fresh(lane: Lane, funds: Funds) -> bool:
    """Return whether a reading is as recent as a reading of the chain's nonce must be, or was made just now."""
    return 0 <= lane.now_s() - funds.read_at_s < max(MIN_READING_LIFE_S, lane.settings.state_timeout_s)
