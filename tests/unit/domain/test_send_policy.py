"""The table from endpoint answers to lane actions: complete, and safe in its corner cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.send_policy import Action, decide
from fencepost.domain.send_result import POSSIBLY_SENT, SendCategory

categories = st.sampled_from(list(SendCategory))

# After these a nonce is neither released nor replaced: the bytes may have been sent.
KEEP_TRYING = {Action.TRACK, Action.FETCH_RECEIPTS, Action.SEND_AGAIN}


@given(category=categories, attempts=st.integers(1, 60), is_filler=st.booleans())
def test_every_category_has_an_action(category: SendCategory, attempts: int, *, is_filler: bool) -> None:
    assert isinstance(decide(category, attempts_at_nonce=attempts, is_filler=is_filler), Action)


@given(category=st.sampled_from(sorted(POSSIBLY_SENT)), attempts=st.integers(1, 60), is_filler=st.booleans())
def test_a_possibly_sent_transaction_is_never_filled_or_replaced(
    category: SendCategory, attempts: int, *, is_filler: bool
) -> None:
    assert decide(category, attempts_at_nonce=attempts, is_filler=is_filler) in KEEP_TRYING


@given(categories, st.integers(1, 60))
def test_a_filler_is_never_filled(category: SendCategory, attempts: int) -> None:
    assert decide(category, attempts_at_nonce=attempts, is_filler=True) is not Action.FILL


@pytest.mark.parametrize(
    ("attempts", "action"), [(1, Action.PROTECT), (2, Action.OUTBID), (9, Action.OUTBID)]
)
def test_only_foreign_use_protects(attempts: int, action: Action) -> None:
    category = SendCategory.REPLACEMENT_UNDERPRICED
    assert decide(category, attempts_at_nonce=attempts, is_filler=False) is action


@pytest.mark.parametrize(
    "category", [SendCategory.UNKNOWN, SendCategory.NONCE_TOO_LOW, SendCategory.ACCEPTED]
)
def test_no_answer_and_too_low_count_as_maybe_sent(category: SendCategory) -> None:
    assert category in POSSIBLY_SENT
