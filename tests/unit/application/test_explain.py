"""Every cause has facts that lead to it; the first rule that applies decides; nonces are hidden from those who may not see them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost.application.explain import (
    HARMLESS,
    MEANINGS,
    Cause,
    ChainFacts,
    Explanation,
    Facts,
    LaneRules,
    database_unavailable,
    explain_signer,
    explain_tx,
    without_nonces,
)
from fencepost.application.membership import NodeView
from fencepost.application.ports import EndpointReport, EndpointTrouble, Header
from fencepost.application.queries import AttemptView, LeaseView, PauseView, SignerView, TxView
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.send_result import SendCategory
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.transaction import Fees, TxType
from fencepost.domain.transaction_state import Kind, Purpose

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ADDRESS = Address("0x" + "ab" * 20)
SIGNER = Signer(31337, ADDRESS)
HASH = TxHash("0x" + "11" * 32)
GWEI = 10**9
BLOCK = BlockRef(90, BlockHash("0x" + "22" * 32))


def attempt(**more: Any) -> AttemptView:
    fields: dict[str, Any] = {
        "number": 1,
        "purpose": Purpose.INTENT,
        "type": TxType.DYNAMIC_FEE,
        "gas": 21000,
        "fees": Fees(fee_cap_wei=30 * GWEI, tip_wei=GWEI),
        "tx_hash": HASH,
        "sent_count": 1,
        "last_result": SendCategory.ACCEPTED,
        "last_message": None,
        "created_at": NOW,
    }
    return AttemptView(**(fields | more))


def tx(number: int = 1, **more: Any) -> TxView:
    """Return a transaction that was sent and is in the pool."""
    fields: dict[str, Any] = {
        "tx_id": UUID(int=number),
        "signer": SIGNER,
        "request_id": None,
        "kind": Kind.INTENT,
        "state": State.SUBMITTED,
        "sub_state": None,
        "nonce": 7,
        "ending": None,
        "error": None,
        "tx_hash": HASH,
        "block": None,
        "submit_count": 1,
        "tags": (),
        "valid_until": None,
        "created_at": NOW,
        "updated_at": NOW,
        "finished_at": None,
        "payload": {"to": "0x" + "cd" * 20, "value": "1000000000000000000"},
        "receipt": None,
        "confirmations": (),
        "attempts": (attempt(),),
    }
    return TxView(**(fields | more))


def queued(number: int = 2, **more: Any) -> TxView:
    fields: dict[str, Any] = {
        "state": State.QUEUED,
        "nonce": None,
        "tx_hash": None,
        "submit_count": 0,
        "attempts": (),
    }
    return tx(number, **(fields | more))


def ended(state: State = State.FAILED, **more: Any) -> TxView:
    fields: dict[str, Any] = {"state": state, "finished_at": NOW}
    return tx(**(fields | more))


def node(name: str = "one", *, is_live: bool = True) -> NodeView:
    return NodeView(name, UUID(int=9), None, "basic", "", "1", NOW, NOW, is_live, 1)


def view(**more: Any) -> SignerView:
    fields: dict[str, Any] = {
        "signer": SIGNER,
        "state": CursorState.ACTIVE,
        "reason": None,
        "is_paused": False,
        "next_nonce": 8,
        "start_nonce": 0,
        "lease": LeaseView("one", 3, NOW, NOW + timedelta(seconds=5)),
        "in_flight": 1,
        "queued": 0,
        "suspended": 0,
    }
    return SignerView(**(fields | more))


def report(endpoint: str = "node-a", *, number: int = 100, block: str = "33", **more: Any) -> EndpointReport:
    head = Header(number, BlockHash("0x" + block * 32), BlockHash("0x" + "44" * 32), 10 * GWEI, 1_700_000_000)
    fields: dict[str, Any] = {
        "head": head,
        "latest_nonce": 7,
        "pending_nonce": 8,
        "balance_wei": 10**18,
        "known": (True,),
    }
    return EndpointReport(endpoint, **(fields | more))


def silent(trouble: EndpointTrouble = EndpointTrouble.SILENT, endpoint: str = "node-a") -> EndpointReport:
    return EndpointReport(endpoint, trouble, f"{endpoint}: {trouble}")


def chain(*reports: EndpointReport, **more: Any) -> ChainFacts:
    fields: dict[str, Any] = {
        "surveyed": (HASH,),
        "head_still_for_s": 1.0,
        "suggested": Fees(fee_cap_wei=21 * GWEI, tip_wei=GWEI),
    }
    return ChainFacts(31337, reports or (report(),), **(fields | more))


def facts(of: TxView | None = None, **more: Any) -> Facts:
    fields: dict[str, Any] = {
        "now": NOW,
        "signer": view(),
        "chain": chain(),
        "tx": of or tx(),
        "head": of or tx(),
        "node": "one",
        "nodes": (node(),),
        "rules": LaneRules(fee_cap_wei=500 * GWEI),
    }
    return Facts(**(fields | more))


PROTECTED = view(state=CursorState.PROTECT, reason="the chain's nonce is 9, ours is 8: foreign", in_flight=1)
PAUSED = view(state=CursorState.PAUSED, is_paused=True, reason="maintenance", queued=1, in_flight=0)
LONG_AGO = NOW - timedelta(hours=1)

CASES: dict[Cause, Facts] = {
    Cause.DONE: facts(ended(State.CONFIRMED, block=BLOCK)),
    Cause.CANCELLED: facts(ended(State.CANCELLED, error="cancelled by ops")),
    Cause.FAILED: facts(ended(error="the handler failed: ValueError")),
    Cause.REVERTED: facts(ended(error="reverted: not today", receipt={"gasUsed": "0x5207"})),
    Cause.OUT_OF_GAS: facts(ended(error="reverted: no reason given", receipt={"gasUsed": hex(21000)})),
    Cause.WOULD_REVERT: facts(ended(error="would revert: not today", nonce=None, attempts=())),
    Cause.EXPIRED: facts(
        ended(error="validUntil passed before the transaction got a nonce", nonce=None, attempts=())
    ),
    Cause.POLICY_REFUSED: facts(
        ended(
            error="the gas limit of 9 is above the gasMax of 8 in the spending policy",
            nonce=None,
            attempts=(),
        )
    ),
    Cause.REFUSED_BY_NODES: facts(
        ended(error="invalid transaction", attempts=(attempt(purpose=Purpose.FILLER),))
    ),
    Cause.SUSPENDED: facts(tx(state=State.SUSPENDED)),
    Cause.DATABASE_UNAVAILABLE: facts(is_writable=False),
    Cause.RPC_UNAVAILABLE: facts(chain=chain(silent(), silent_for_s=12.0)),
    Cause.RPC_RATE_LIMITED: facts(chain=chain(silent(EndpointTrouble.RATE_LIMITED))),
    Cause.WRONG_CHAIN: facts(chain=chain(silent(EndpointTrouble.WRONG_CHAIN))),
    Cause.WAITING_CONFIRMATIONS: facts(tx(state=State.TRACKING, block=BLOCK)),
    Cause.CHAIN_STALLED: facts(chain=chain(head_still_for_s=61.0)),
    Cause.SIGNER_PROTECTED: facts(signer=PROTECTED),
    Cause.AWAITING_APPROVAL: facts(queued(), approval="two of three approvers"),
    Cause.SIGNER_PAUSED: facts(queued(), signer=PAUSED, pause=PauseView("ops", NOW, "maintenance", False)),
    Cause.SIGNER_DRAINED: facts(queued(), signer=PAUSED, pause=PauseView("ops", NOW, None, True)),
    Cause.NO_LEASE_HOLDER: facts(nodes=(node(is_live=False),)),
    Cause.NO_KEY: facts(queued(), signer=view(lease=None), has_key=False),
    Cause.BEHIND_OTHER: facts(queued(), head=tx(), ahead=1),
    Cause.WINDOW_FULL: facts(
        queued(), head=tx(), ahead=1, rules=LaneRules(window=1, is_strict=False, fee_cap_wei=500 * GWEI)
    ),
    Cause.FOREIGN_NONCE: facts(tx(sub_state=SubState.SUPERSEDED)),
    Cause.CANCELLING: facts(tx(ending=State.CANCELLED, error="cancelled by ops")),
    Cause.UNFUNDED: facts(
        queued(
            sub_state=SubState.UNFUNDED,
            error=f"insufficient funds for gas * price + value: address {ADDRESS} have 1 want 3000000000000000000;"
            " 5 wei are missing; it is sent when the balance suffices",
        )
    ),
    Cause.NONCE_GAP: facts(chain=chain(report(latest_nonce=5))),
    Cause.FEE_BELOW_MARKET: facts(tx(attempts=(attempt(fees=Fees(fee_cap_wei=GWEI, tip_wei=1)),))),
    Cause.FEE_CAP_REACHED: facts(
        tx(attempts=(attempt(fees=Fees(fee_cap_wei=GWEI, tip_wei=1)),)), rules=LaneRules(fee_cap_wei=2 * GWEI)
    ),
    Cause.KEY_UNAVAILABLE: facts(
        tx(
            sub_state=SubState.STUCK,
            error="the signer can't continue and is retried: the key store is closed",
        )
    ),
    Cause.RPC_DISAGREE: facts(chain=chain(report(), report("node-b", block="55"))),
    Cause.RPC_LAGGING: facts(chain=chain(report(), report("node-b", number=90), report("node-c", number=91))),
    Cause.DROPPED_FROM_POOL: facts(chain=chain(report(known=(False,)))),
    Cause.PENDING_IN_POOL: facts(tx(updated_at=LONG_AGO)),
    Cause.IN_PROGRESS: facts(),
}


@pytest.mark.parametrize("cause", list(CASES), ids=str)
def test_facts_lead_to_the_cause(cause: Cause) -> None:
    found = explain_tx(CASES[cause])
    assert found.cause is cause
    assert found.summary.endswith(".")
    assert cause in HARMLESS or found.actions or found.expected
    for action in found.actions:
        assert action.command.startswith("fencepost ")
        assert action.consequence


def test_every_cause_has_a_case_and_a_meaning() -> None:
    assert set(CASES) | {Cause.IDLE} == set(Cause) == set(MEANINGS)


@pytest.mark.parametrize(
    ("stronger", "changes"),
    [
        (Cause.DONE, {"tx": ended(State.CONFIRMED, block=BLOCK), "signer": PROTECTED}),
        (Cause.SUSPENDED, {"tx": tx(state=State.SUSPENDED), "signer": PROTECTED}),
        (Cause.DATABASE_UNAVAILABLE, {"is_writable": False, "chain": chain(silent())}),
        (Cause.RPC_UNAVAILABLE, {"chain": chain(silent()), "signer": PROTECTED}),
        (Cause.WAITING_CONFIRMATIONS, {"tx": tx(state=State.TRACKING, block=BLOCK), "signer": PROTECTED}),
        (
            Cause.CHAIN_STALLED,
            {"tx": tx(state=State.TRACKING, block=BLOCK), "chain": chain(head_still_for_s=99.0)},
        ),
        (Cause.SIGNER_PROTECTED, {"tx": queued(), "signer": replace(PROTECTED, is_paused=True)}),
        (Cause.SIGNER_PROTECTED, {"signer": PROTECTED, "chain": chain(head_still_for_s=99.0)}),
        (Cause.SIGNER_PAUSED, {"tx": queued(), "signer": PAUSED, "has_key": False}),
        (Cause.NO_LEASE_HOLDER, {"tx": queued(), "head": tx(), "nodes": (node(is_live=False),)}),
        (Cause.UNFUNDED, {"tx": tx(sub_state=SubState.UNFUNDED), "chain": chain(head_still_for_s=99.0)}),
        (Cause.NONCE_GAP, {"chain": chain(report(latest_nonce=5), head_still_for_s=99.0)}),
        (
            Cause.FEE_BELOW_MARKET,
            {
                "tx": tx(attempts=(attempt(fees=Fees(fee_cap_wei=GWEI, tip_wei=1)),)),
                "chain": chain(report(known=(False,))),
            },
        ),
        (Cause.DROPPED_FROM_POOL, {"chain": chain(report(known=(False,)), head_still_for_s=99.0)}),
        (Cause.CHAIN_STALLED, {"tx": tx(updated_at=LONG_AGO), "chain": chain(head_still_for_s=99.0)}),
    ],
)
def test_the_stronger_cause_wins(stronger: Cause, changes: dict[str, Any]) -> None:
    found = replace(facts(changes.get("tx")), **changes)
    assert explain_tx(found).cause is stronger


def test_a_mined_transaction_is_not_stopped_by_a_pause() -> None:
    mined = tx(state=State.TRACKING, block=BLOCK)
    assert explain_tx(facts(mined, signer=PAUSED)).cause is Cause.WAITING_CONFIRMATIONS


def test_one_silent_endpoint_among_others_is_no_cause() -> None:
    assert explain_tx(facts(chain=chain(silent(), report("node-b")))).cause is Cause.IN_PROGRESS


def test_the_cause_of_the_head_is_passed_on() -> None:
    head = tx(attempts=(attempt(fees=Fees(fee_cap_wei=GWEI, tip_wei=1)),))
    found = explain_tx(facts(queued(), head=head, ahead=3))
    assert found.blocked_by is not None
    assert (found.blocked_by.tx_id, found.blocked_by.cause) == (head.tx_id, Cause.FEE_BELOW_MARKET)
    assert "number 4" in found.summary
    assert any("tx bump" in action.command for action in found.actions)


def test_unfunded_names_what_is_needed_present_and_missing() -> None:
    found = explain_tx(CASES[Cause.UNFUNDED])
    assert "needs 3 ether (1 ether value, 2 ether gas" in found.summary
    assert "has 1 ether: short by 2 ether" in found.summary
    assert "--value 2000000000000000000" in found.actions[0].command


def test_an_unfunded_attempt_is_computed_from_its_gas() -> None:
    broke = tx(sub_state=SubState.UNFUNDED, attempts=(attempt(last_result=SendCategory.INSUFFICIENT_FUNDS),))
    assert "needs 1.00063 ether (1 ether value, 0.00063 ether gas" in explain_tx(facts(broke)).summary


def test_a_stored_want_counts_transactions_in_flight_apart_from_gas() -> None:
    broke = queued(
        sub_state=SubState.UNFUNDED,
        error="address x have 1 want 4000000000000000000, 2000000000000000000 wei of it for transactions in flight; 5 wei are",
    )
    summary = explain_tx(facts(broke)).summary
    assert "1 ether value, 1 ether gas at the maximum price, 2 ether for transactions in flight" in summary


def test_out_of_gas_proposes_a_higher_limit() -> None:
    found = explain_tx(CASES[Cause.OUT_OF_GAS])
    assert "used 21000 of its gas limit of 21000" in found.summary
    assert "--gas 42000" in found.actions[0].command


def test_the_limit_of_the_request_is_named() -> None:
    low = {"to": None, "value": "0", "fees": {"feeCap": str(GWEI), "tip": "1"}}
    capped = tx(
        payload=low,
        sub_state=SubState.STUCK,
        error="attempt 1 pays 1 wei per gas; a replacement would exceed the request's own fees",
    )
    found = explain_tx(facts(capped))
    assert found.cause is Cause.FEE_CAP_REACHED
    assert "the request's own maximum fee is 1 gwei" in found.summary


@pytest.mark.parametrize(("latest", "first"), [(9, "adopt"), (8, "adopt"), (7, "keep"), (5, "fill")])
def test_protect_lists_three_decisions_and_the_fitting_one_first(latest: int, first: str) -> None:
    found = explain_tx(facts(signer=PROTECTED, chain=chain(report(latest_nonce=latest))))
    decisions = [action.command.split("--decision ")[1].split()[0] for action in found.actions]
    assert decisions[0] == first
    assert set(decisions) == {"adopt", "keep", "fill"}
    assert all(ADDRESS in action.command and "--reason" in action.command for action in found.actions)


def test_confirmations_are_counted_to_the_head_with_an_estimate() -> None:
    mined = tx(state=State.TRACKING, block=BLOCK)
    found = explain_tx(facts(mined, chain=chain(block_interval_s=12.0)))
    assert "10 of 20 confirmations" in found.summary
    assert found.expected == "It is final after 10 more blocks, about 2 min."


def test_a_tag_in_place_of_a_depth() -> None:
    mined = tx(state=State.TRACKING, block=BLOCK)
    assert '"finalized"' in explain_tx(facts(mined, rules=LaneRules(required="finalized"))).summary


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (facts(head=None, signer=view(in_flight=0)), Cause.IDLE),
        (facts(head=None, signer=PROTECTED), Cause.SIGNER_PROTECTED),
        (facts(head=None, chain=chain(silent())), Cause.RPC_UNAVAILABLE),
        (facts(head=None, has_key=False, signer=view(lease=None, in_flight=0)), Cause.IDLE),
        (facts(head=queued(), signer=view(lease=None), has_key=False), Cause.NO_KEY),
        (facts(chain=chain(report(known=(False,)))), Cause.DROPPED_FROM_POOL),
    ],
)
def test_a_signer_is_explained_by_itself_or_by_its_head(given: Facts, cause: Cause) -> None:
    found = explain_signer(replace(given, tx=None))
    assert found.cause is cause
    assert (found.blocked_by is not None) is (cause is Cause.DROPPED_FROM_POOL)


def test_a_transaction_is_required() -> None:
    with pytest.raises(ValueError, match="about a signer"):
        explain_tx(replace(facts(), tx=None))


@pytest.mark.parametrize("cause", list(CASES), ids=str)
def test_no_nonce_is_shown_to_those_who_may_not_see_it(cause: Cause) -> None:
    of = CASES[cause].tx
    assert of is not None
    moved = replace(CASES[cause], tx=replace(of, nonce=None if of.nonce is None else 77_123))
    head = moved.head
    if head is not None and head.nonce is not None:
        moved = replace(moved, head=replace(head, nonce=77_123))
    ours = chain(*(replace_nonces(one) for one in moved.chain.reports))
    moved = replace(moved, chain=ours, signer=replace(moved.signer, next_nonce=77_124))
    assert "77" not in _texts(explain_tx(moved).without_nonces())


def replace_nonces(one: EndpointReport) -> EndpointReport:
    return one if one.trouble else one.changed(latest_nonce=77_100, pending_nonce=77_130)


def _texts(found: Explanation) -> str:
    parts = [found.summary, found.expected, *(one.text for one in found.evidence)]
    parts += [f"{one.command} {one.consequence}" for one in found.actions]
    return "\n".join([*parts, found.blocked_by.summary if found.blocked_by else ""])


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("the chain's nonce is 9, ours is 8: foreign", "the chain's nonce is …, ours is …: foreign"),
        ("no transaction has the nonces from 3 to 5", "no transaction has the nonces from … to …"),
        ("(latest 4, pending 6): wait", "(latest …, pending …): wait"),
        (
            "nonce.start_from is 0, but the chain's nonce is 5",
            "nonce.start_from is …, but the chain's nonce is …",
        ),
        ("short by 2 ether", "short by 2 ether"),
        ("block 12 was mined", "block 12 was mined"),
    ],
)
def test_numbers_after_a_word_for_a_nonce_are_removed(text: str, hidden: str) -> None:
    assert without_nonces(text) == hidden


def test_a_database_failure_names_what_was_seen() -> None:
    found = database_unavailable("no answer within 5 s", NOW)
    assert found.cause is Cause.DATABASE_UNAVAILABLE
    assert "no answer within 5 s" in found.summary
