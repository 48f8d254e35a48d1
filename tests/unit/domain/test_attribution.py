"""Attribution: which transaction on the chain belongs to which stored request, one to one and in order."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.attribution import MinedTx, attribute, effect_of, is_filler
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.states import State
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent, Kind, ManagedTx

CHAIN_ID = 31_337
SIGNER = Signer(CHAIN_ID, Address("0x" + "a1" * 20))
SINK = Address("0x" + "5e" * 20)

# Few different values, so that many requests are equal.
CALLS = st.builds(
    Call,
    to=st.sampled_from([SINK, SIGNER.address, None]),
    value_wei=st.integers(0, 1),
    data=st.sampled_from([b"", b"\x01"]),
)


def request(number: int, call: Call, kind: Kind = Kind.INTENT, state: State = State.QUEUED) -> ManagedTx:
    return ManagedTx(UUID(int=number), SIGNER, seq=number, kind=kind, intent=Intent(call), state=state)


def mined(nonce: int, call: Call, chain_id: int = CHAIN_ID) -> MinedTx:
    block = BlockRef(nonce + 1, BlockHash(f"0x{nonce:064x}"))
    return MinedTx(chain_id, TxHash(f"0x{nonce:064x}"), SIGNER.address, nonce, block, call)


REQUESTS = st.lists(
    st.tuples(CALLS, st.sampled_from([*Kind, Kind.INTENT]), st.sampled_from([*State, State.QUEUED])),
    max_size=8,
).map(lambda made: [request(number, *parts) for number, parts in enumerate(made, 1)])
MINED = st.lists(CALLS, max_size=8).map(
    lambda calls: [mined(nonce, call) for nonce, call in enumerate(calls)]
)


@given(mined=MINED, requests=REQUESTS, order=st.randoms())
def test_each_transaction_is_matched_once_or_foreign(
    mined: list[MinedTx], requests: list[ManagedTx], order: object
) -> None:
    order.shuffle(requests)  # type: ignore[attr-defined]  # hypothesis gives a Random
    matches, foreign, _ = attribute(mined, requests)
    assert sorted([match.mined for match in matches] + list(foreign), key=lambda tx: tx.nonce) == mined
    matched = [match.request.tx_id for match in matches]
    assert len(set(matched)) == len(matched)


@given(mined=MINED, requests=REQUESTS)
def test_matches_do_what_was_requested_and_are_as_many_as_possible(
    mined: list[MinedTx], requests: list[ManagedTx]
) -> None:
    matches, *_ = attribute(mined, requests)
    open_ = [tx for tx in requests if tx.kind is Kind.INTENT and not tx.is_terminal]
    for match in matches:
        assert match.request in open_
        assert effect_of(CHAIN_ID, match.request.intent.call) == effect_of(CHAIN_ID, match.mined.call)
    asked = Counter(tx.intent.call for tx in open_)
    done = Counter(tx.call for tx in mined)
    assert len(matches) == (asked & done).total()


@given(mined=MINED, requests=REQUESTS)
def test_of_equal_requests_the_oldest_has_the_lowest_nonce(
    mined: list[MinedTx], requests: list[ManagedTx]
) -> None:
    matches, *_ = attribute(mined, requests)
    for call in {match.mined.call for match in matches}:
        same = [match for match in matches if match.mined.call == call]
        seqs = [match.request.seq for match in sorted(same, key=lambda match: match.mined.nonce)]
        waiting = [
            tx.seq
            for tx in requests
            if tx.kind is Kind.INTENT and not tx.is_terminal and tx.intent.call == call
        ]
        assert seqs == waiting[: len(seqs)]


@given(mined=MINED, requests=REQUESTS, cut=st.integers(0, 8))
def test_matching_in_two_passes_gives_the_same_result(
    mined: list[MinedTx], requests: list[ManagedTx], cut: int
) -> None:
    """A search continues from its last commit: earlier matches are no candidates any more."""
    first = attribute(mined[:cut], requests)
    taken = {match.request.tx_id for match in first.matches}
    second = attribute(mined[cut:], [tx for tx in requests if tx.tx_id not in taken])
    assert first.matches + second.matches == attribute(mined, requests).matches


def test_another_chain_or_a_nonce_holder_is_no_match() -> None:
    call = Call(to=SINK, value_wei=1)
    other = mined(0, call, chain_id=1)
    assert attribute([other], [request(1, call)]).foreign == (other,)
    allocated = request(1, call, state=State.ALLOCATED).changed(nonce=0)
    assert attribute([mined(0, call)], [allocated]).matches == ()


def test_a_transaction_mined_before_a_request_was_accepted_is_no_match() -> None:
    call = Call(to=SINK, value_wei=1)
    accepted = request(1, call).changed(accepted_at_s=1_000_000.0)
    early, late = (mined(0, call).changed(timestamp_s=at_s) for at_s in (999_900, 1_000_000))
    assert attribute([early], [accepted], by_time=True).foreign == (early,)
    assert [match.mined for match in attribute([late], [accepted], by_time=True).matches] == [late]
    assert attribute([early], [accepted]).matches != ()


def test_a_transaction_that_looks_older_by_a_clock_that_is_behind_is_unclear() -> None:
    call = Call(to=SINK, value_wei=1)
    accepted = [request(number, call).changed(accepted_at_s=1_000_000.0) for number in (1, 2)]
    txs = [
        mined(nonce, call).changed(timestamp_s=at_s) for nonce, at_s in enumerate((998_000, 999_100, 999_990))
    ]
    found = attribute(txs, accepted, by_time=True, chain_lag_s=1_000.0)
    assert found.foreign == (txs[0],)
    assert [(match.mined.nonce, match.request.seq) for match in found.unclear] == [(1, 1)]
    assert [(match.mined.nonce, match.request.seq) for match in found.matches] == [(2, 2)]
    assert attribute(txs, accepted, chain_lag_s=1_000.0).unclear == ()


def test_an_empty_transfer_to_the_signer_is_a_filler() -> None:
    assert is_filler(mined(0, Call(to=SIGNER.address)))
    assert not is_filler(mined(0, Call(to=SIGNER.address, value_wei=1)))
    assert not is_filler(mined(0, Call(to=SINK)))
    assert not is_filler(mined(0, Call(to=SIGNER.address, data=b"\x01")))


def test_a_foreign_transaction_is_described_for_the_operator() -> None:
    text = str(mined(7, Call(to=SINK)))
    assert f"{7:064x}" in text
    assert "block 8" in text
    assert SINK in text
    assert "new contract" in str(mined(7, Call(to=None, data=b"\x01")))
