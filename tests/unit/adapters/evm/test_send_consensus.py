"""Answers of several endpoints to the same bytes: which one decides."""

from __future__ import annotations

import pytest

from fencepost.adapters.evm.send_consensus import PRECEDENCE, merge
from fencepost.domain.send_result import SendCategory, SendResult

C = SendCategory


def verdict(*categories: SendCategory) -> SendCategory:
    forth = merge([SendResult(category) for category in categories]).category
    assert forth is merge([SendResult(category) for category in reversed(categories)]).category
    return forth


def test_every_category_has_a_rank() -> None:
    assert sorted(category for category, _ in PRECEDENCE) == sorted(C)
    assert all(reason for _, reason in PRECEDENCE)


@pytest.mark.parametrize("other", [category for category in C if category is not C.ACCEPTED])
def test_one_accepting_endpoint_is_enough(other: SendCategory) -> None:
    assert verdict(C.ACCEPTED, other) is C.ACCEPTED


@pytest.mark.parametrize("maybe", [C.UNKNOWN, C.NODE_NOT_READY, C.FEE_CAP_EXCEEDED, C.NONCE_TOO_LOW])
@pytest.mark.parametrize(
    "refusal",
    [
        C.FATAL,
        C.TERMINALLY_STUCK,
        C.INSUFFICIENT_FUNDS,
        C.UNDERPRICED,
        C.REPLACEMENT_UNDERPRICED,
        C.POOL_FULL,
        C.NONCE_TOO_HIGH,
        C.DELEGATED_LIMIT,
        C.TYPE_CONFLICT,
    ],
)
def test_a_possible_success_outranks_a_rejection(maybe: SendCategory, refusal: SendCategory) -> None:
    assert verdict(maybe, refusal) is maybe


def test_a_request_fails_only_if_all_endpoints_agree() -> None:
    assert verdict(C.FATAL, C.FATAL) is C.FATAL
    assert all(verdict(C.FATAL, other) is other for other in C)
    assert verdict(C.UNDERPRICED, C.NONCE_TOO_HIGH) is C.UNDERPRICED


def test_of_two_equal_answers_the_higher_chain_nonce_counts() -> None:
    behind, ahead = (SendResult(C.NONCE_TOO_LOW, chain_nonce=nonce) for nonce in (7, 9))
    assert merge([behind, ahead]) == merge([ahead, behind]) == ahead
