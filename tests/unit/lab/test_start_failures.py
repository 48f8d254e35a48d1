"""Failed starts of nodes are counted by reason; a node that ends without one is unexpected."""

from __future__ import annotations

from lab.chaos.testbed import start_failure


def test_one_reason_from_several_endpoints_counts_once() -> None:
    said = "node node-3 did not start: fencepost: http://127.0.0.1:{} is on chain 5, not 31337"
    assert start_failure(said.format(44581)) == start_failure(said.format(40891))
    assert start_failure(said.format(44581)) == "an endpoint is on chain 5, not 31337"


def test_an_end_without_a_reason_is_unexpected() -> None:
    said = "node node-2 did not start: ConnectionDoesNotExistError: connection was closed"
    assert start_failure(said) == f"unexpected: {said}"
