"""What a client retries, at which node and when: driven step by step, without a network and without waiting."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from fencepost import errors as core_errors
from fencepost.api.problems import KINDS, ApiError
from fencepost.client import AsyncClient, Client, errors
from fencepost.client.endpoints import Endpoints
from fencepost.client.protocol import HttpRequest, NodeResponse, NoResponse, Pause, Steps, parse_node_url
from fencepost.client.retry import RetryPolicy
from fencepost.client.types import MAX_CHUNK_BYTES, SendParams, chunks, to_wire
from fencepost.errors import FencepostError, InvalidRequest

ONE, TWO = "http://one:1", "http://two:2"
TX = {"txId": "t", "requestId": "r", "chainId": 1, "signer": "0x", "state": "QUEUED"}
CUT, REFUSED = NoResponse("cut", sent=True), NoResponse("refused", sent=False)


@dataclass
class Stage:
    """Nodes with scripted answers, and a clock that pauses advance."""

    urls: Sequence[str] = (ONE,)
    sayings: list[NodeResponse | NoResponse] = field(default_factory=list)
    retry_for_s: float = 60.0
    now_s: float = 100.0
    sent: list[HttpRequest] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)

    def calls(self) -> Endpoints:
        retry = RetryPolicy.with_nodes(
            self.urls, api_key="fp_key", retry_for_s=self.retry_for_s, response_timeout_s=5.0
        )
        retry.clock = lambda: self.now_s
        return Endpoints(retry)

    def walk(self, steps: Steps[Any]) -> Any:
        outcome: NodeResponse | NoResponse | None = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                return end.value
            if isinstance(step, Pause):
                self.pauses_s.append(step.seconds)
                self.now_s += step.seconds
                outcome = None
            else:
                self.sent.append(step)
                outcome = self.sayings.pop(0) if self.sayings else CUT
                self.now_s += 0.01

    @property
    def hosts(self) -> list[str]:
        return [send.node.host for send in self.sent]


def ok(body: Any = TX, status: int = 200) -> NodeResponse:
    return NodeResponse(status, None, msgspec.json.encode(body))


def problem(code: str, retry_after: str | None = None) -> NodeResponse:
    shown = ApiError(code, "because").problem
    return NodeResponse(shown.status, retry_after, msgspec.json.encode(shown))


def send(stage: Stage, **more: Any) -> Any:
    return stage.walk(stage.calls().send(signer="0x", **more))


@pytest.mark.parametrize(
    "passing",
    [CUT, REFUSED, problem("database_unavailable"), problem("busy"), problem("not_leader"), problem("rate_limited"),
     NodeResponse(502, None, b"<html>")],
)  # fmt: skip
def test_a_send_is_repeated_with_the_same_request_id(passing: NodeResponse | NoResponse) -> None:
    stage = Stage(sayings=[passing, passing, ok()])
    assert send(stage).tx_id == "t"
    bodies = {one.body for one in stage.sent}
    assert len(stage.sent) == 3
    assert len(bodies) == 1
    assert len(msgspec.json.decode(bodies.pop() or b"")["requestId"]) == 32
    assert len(stage.pauses_s) == 2


def test_a_given_request_id_is_kept_and_sends_without_one_differ() -> None:
    stage = Stage(sayings=[ok(), ok(), ok()])
    for request_id in ("mine", None, None):
        send(stage, request_id=request_id)
    ids = [msgspec.json.decode(one.body or b"")["requestId"] for one in stage.sent]
    assert ids[0] == "mine"
    assert len(set(ids)) == 3


def test_an_empty_request_id_is_rejected_before_anything_is_sent() -> None:
    stage = Stage(sayings=[ok()])
    for request_id in ("", " "):
        with pytest.raises(InvalidRequest, match="request_id is empty"):
            send(stage, request_id=request_id)
    many: list[SendParams] = [{"signer": "0x", "request_id": f"r{number}"} for number in range(1001)]
    with pytest.raises(InvalidRequest, match="request_id is empty"):
        stage.walk(stage.calls().send_many([*many, {"signer": "0x", "request_id": ""}]))
    assert stage.sent == []


@pytest.mark.parametrize(
    ("sayings", "unknown"),
    [
        ([REFUSED], False),
        ([CUT], True),
        ([CUT, REFUSED, REFUSED], True),  # a cut call may have arrived, whatever followed
        ([CUT, problem("key_invalid")], True),
        (
            [CUT, problem("request_conflict")],
            False,
        ),  # if ours had been accepted, the stored payload would be ours
        ([NodeResponse(502, None, b"<html>")], True),
        ([problem("internal")], True),
        ([problem("rate_limited")], False),
        ([problem("signer_unknown")], False),
        ([NodeResponse(302, None, b"")], True),
        ([ok([])], True),
    ],
)
def test_a_failed_send_reports_whether_it_may_have_been_accepted(
    sayings: list[NodeResponse | NoResponse], *, unknown: bool
) -> None:
    sayings = sayings if len(sayings) > 1 else sayings * 100
    stage = Stage(sayings=[*sayings, *[REFUSED] * 100], retry_for_s=10)
    with pytest.raises(errors.ClientError) as caught:
        send(stage, request_id="mine")
    assert caught.value.outcome_unknown is unknown
    assert caught.value.request_id == "mine"


@pytest.mark.parametrize("code", sorted(KINDS))
def test_permanent_errors_are_raised_immediately(code: str) -> None:
    stage = Stage(sayings=[problem(code)], retry_for_s=0)
    with pytest.raises(errors.RequestRejected) as caught:
        send(stage, request_id="mine")
    assert len(stage.sent) == 1
    assert caught.value.code == code
    assert caught.value.detail == "because"
    assert caught.value.status == KINDS[code].status
    assert caught.value.request_id == "mine"
    assert KINDS[code].title in str(caught.value)


def test_rejections_raise_the_same_types_as_an_embedded_node() -> None:
    expected: dict[str, tuple[type[errors.RequestRejected], type[FencepostError]]] = {
        "field_invalid": (errors.BadRequest, core_errors.InvalidRequest),
        "address_invalid": (errors.BadRequest, core_errors.InvalidRequest),
        "body_too_large": (errors.BadRequest, core_errors.InvalidRequest),
        "signer_unknown": (errors.UnknownSigner, core_errors.UnknownSigner),
        "request_conflict": (errors.RequestConflict, core_errors.RequestConflict),
        "signer_protected": (errors.SignerProtected, core_errors.SignerProtected),
        "not_leader": (errors.NotLeader, core_errors.NotLeader),
        "rate_limited": (errors.RateLimited, core_errors.Overloaded),
        "key_missing": (errors.NotAuthenticated, core_errors.UsageError),
        "scope_missing": (errors.NotPermitted, core_errors.UsageError),
        "tx_not_found": (errors.NotFound, core_errors.UsageError),
        "tx_ended": (errors.WrongState, core_errors.UsageError),
        "database_unavailable": (errors.Unavailable, core_errors.Unready),
        "internal": (errors.ServerFault, FencepostError),
    }
    for code, (own, core) in expected.items():
        shown = errors.error_from_problem(
            ApiError(code, "because", field="to", owner="node-2").problem, retry_after_s=3
        )
        assert type(shown) is own
        assert isinstance(shown, core)
        assert (shown.field, shown.owner, shown.retry_after_s) == ("to", "node-2", 3)


def test_an_unready_node_is_left_for_the_next_one_immediately() -> None:
    for passing in (CUT, REFUSED, problem("database_unavailable"), problem("not_leader", "10")):
        stage = Stage((ONE, TWO), [passing, ok()])
        send(stage)
        assert stage.hosts == ["one", "two"]
        assert stage.pauses_s == []


def test_the_node_that_served_last_is_called_first() -> None:
    stage = Stage((ONE, TWO), [REFUSED, ok(), ok()])
    calls = stage.calls()
    stage.walk(calls.get("t"))
    stage.walk(calls.get("t"))
    assert stage.hosts == ["one", "two", "two"]


def test_after_all_nodes_the_client_pauses_as_long_as_requested() -> None:
    stage = Stage((ONE, TWO), [problem("not_leader", "3"), problem("not_leader", "3"), ok()])
    send(stage)
    assert stage.hosts == ["one", "two", "one"]
    assert stage.pauses_s == [3.0]


def test_a_node_that_requests_a_pause_is_not_bypassed() -> None:
    stage = Stage((ONE, TWO), [problem("rate_limited", "1"), ok()])
    send(stage)
    assert stage.hosts == ["one", "one"]
    assert stage.pauses_s == [1.0]


def test_a_pause_beyond_the_deadline_is_not_started() -> None:
    stage = Stage(sayings=[problem("not_leader", "30")], retry_for_s=10)
    with pytest.raises(errors.NotLeader):
        send(stage)
    assert stage.pauses_s == []


def test_retries_end_at_their_deadline_and_pauses_grow_to_a_bound() -> None:
    stage = Stage(retry_for_s=20)
    with pytest.raises(errors.Unreachable, match="one:1 does not answer: cut") as caught:
        send(stage, request_id="mine")
    assert caught.value.sent
    assert caught.value.request_id == "mine"
    assert 110 < stage.now_s <= 120.1
    assert stage.pauses_s[0] <= 0.1 < stage.pauses_s[-1] <= 2.0


@pytest.mark.parametrize("outcome", [CUT, problem("database_unavailable", "1"), problem("busy", "1")])
def test_a_command_that_may_have_arrived_is_never_repeated(outcome: NodeResponse | NoResponse) -> None:
    stage = Stage((ONE, TWO), [outcome])
    with pytest.raises(errors.ClientError):
        stage.walk(stage.calls().cancel("t", reason="because"))
    assert len(stage.sent) == 1
    assert not stage.sent[0].is_repeatable


@pytest.mark.parametrize("outcome", [REFUSED, problem("rate_limited", "1")])
def test_a_command_that_never_arrived_is_repeated(outcome: NodeResponse | NoResponse) -> None:
    done = {
        "commandId": "1", "command": "cancel", "done": True, "applied": True, "outcome": "x", "askedBy": "me", "reason": None,
        "askedAt": datetime.now(UTC), "doneAt": None,
    }  # fmt: skip
    stage = Stage(sayings=[outcome, ok(done)])
    assert stage.walk(stage.calls().cancel("t")).done
    assert len(stage.sent) == 2


def test_a_wait_continues_past_a_restarting_node_until_its_deadline() -> None:
    queued = ok(status=202)
    stage = Stage(sayings=[queued, CUT, REFUSED, problem("busy", "1"), queued, ok({**TX, "state": "CONFIRMED"})],
                  retry_for_s=0)  # fmt: skip
    assert send(stage, wait="confirmed").state == "CONFIRMED"
    assert [one.method for one in stage.sent] == ["POST"] + 5 * ["GET"]
    assert all("wait=confirmed" in one.target for one in stage.sent)


def test_a_wait_that_times_out_returns_the_last_known_state() -> None:
    stage = Stage(sayings=[ok(status=202), ok({**TX, "state": "SUBMITTED"}, status=202)])
    with pytest.raises(errors.NotReached) as caught:
        send(stage, wait="confirmed", timeout_s=0.0)
    assert caught.value.tx.state == "SUBMITTED"
    assert caught.value.request_id


@pytest.mark.parametrize(
    "answer",
    [NodeResponse(302, None, b""), NodeResponse(200, None, b"<html>"), NodeResponse(200, None, b"[]"), NodeResponse(200, None, b"[" * 100_000),
     NodeResponse(200, None, b'"\xff"')],
)  # fmt: skip
def test_an_answer_that_is_not_from_a_node_is_reported(answer: NodeResponse) -> None:
    with pytest.raises(errors.BadResponse):
        send(Stage(sayings=[answer]))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b'"\xff"', b"{}"])
def test_a_rejection_without_a_problem_document_is_classified_by_its_status(body: bytes) -> None:
    with pytest.raises(errors.NotFound, match="HTTP 404"):
        send(Stage(sayings=[NodeResponse(404, None, body)]))


def test_each_item_of_a_batch_has_its_own_outcome_and_rejected_ones_are_tried_at_another_node() -> None:
    shown = {"title": "t", "type": "x", "detail": "d"}
    first = {
        "results": [
            {"status": 202, "tx": TX},
            {"status": 409, "problem": {**shown, "status": 409, "code": "not_leader"}},
            {"status": 400, "problem": {**shown, "status": 400, "code": "field_invalid", "field": "to"}},
        ]
    }
    second = {"results": [{"status": 202, "tx": {**TX, "txId": "u"}}]}
    stage = Stage((ONE, TWO), [ok(first), ok(second)])
    asked: list[SendParams] = [{"signer": "0x", "request_id": str(number)} for number in range(3)]
    good, moved, bad = stage.walk(stage.calls().send_many(asked))
    assert (good.tx_id, moved.tx_id) == ("t", "u")
    assert isinstance(bad, errors.BadRequest)
    assert (bad.field, bad.request_id) == ("to", "2")
    assert stage.hosts == ["one", "two"]
    assert len(msgspec.json.decode(stage.sent[1].body or b"")["requests"]) == 1


def test_accepted_items_stay_accepted_when_the_node_goes_away() -> None:
    taken = {"results": 1000 * [{"status": 202, "tx": TX}]}
    stage = Stage(sayings=[ok(taken)], retry_for_s=1)
    asked: list[SendParams] = [{"signer": "0x", "request_id": str(number)} for number in range(1002)]
    results = stage.walk(stage.calls().send_many(asked))
    assert [type(result).__name__ for result in results] == 1000 * ["TxOut"] + 2 * ["Unreachable"]
    assert [result.request_id for result in results[1000:]] == ["1000", "1001"]


def test_a_batch_is_split_at_the_limit_of_a_node() -> None:
    large = to_wire({"signer": "0x", "data": b"\1" * 120_000})
    parts = list(chunks([large] * 100))
    assert sum(len(part) for part in parts) == 100
    assert all(sum(len(body) for _, body in part) <= MAX_CHUNK_BYTES for part in parts)
    assert len(parts) > 3


def test_arguments_are_encoded_as_json_without_losing_digits() -> None:
    wire = to_wire(
        {"signer": "0x", "method": "f(uint256,bytes,bool,(int8,string)[])", "args": [2**255, b"\1", True, [(-5, "a")]],
         "value_wei": 2**255, "gas": 21_000, "max_fee_per_gas_wei": 3, "max_priority_fee_per_gas_wei": 2}
    )  # fmt: skip
    assert wire.payload.args == [str(2**255), "0x01", True, [["-5", "a"]]]
    assert wire.payload.value == str(2**255)
    assert wire.payload.fees is not None
    with pytest.raises(InvalidRequest, match="given together"):
        to_wire({"signer": "0x", "max_fee_per_gas_wei": 3})
    with pytest.raises(InvalidRequest, match="float"):
        to_wire({"signer": "0x", "args": [0.1]})


@pytest.mark.parametrize("url", ["", "one:1", "ftp://one", "http://", "http://u:hush@one", "http://one:99999",
                                 "http://one/?hush", "http://one/#hush", "http://o ne", "http://one\n"])  # fmt: skip
def test_an_invalid_url_is_rejected_without_quoting_it(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_node_url(url)
    assert "hush" not in str(caught.value)


def test_urls_and_keys_are_validated_when_the_client_is_created() -> None:
    with pytest.raises(InvalidRequest, match="1 to 32"):
        Client([])
    with pytest.raises(InvalidRequest, match="API key") as caught:
        Client(ONE, api_key="hush\r\nX: y")
    assert "hush" not in str(caught.value)
    assert parse_node_url("https://[::1]/behind/a/path/").prefix == "/behind/a/path"
    assert parse_node_url("https://[::1]/").origin == "https://[::1]:443"


def test_both_clients_offer_every_call_and_nothing_else() -> None:
    def offered(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}

    calls = offered(Endpoints)
    assert {"send", "send_many", "wait", "get", "iterate", "cancel"} <= calls
    assert offered(Client) - {"close", "run"} == calls
    assert offered(AsyncClient) - {"aclose", "run"} == calls


def test_the_client_does_not_import_node_modules() -> None:
    heavy = ["asyncpg", "coincurve", "uvicorn", "eth_abi", "sha3", "aiohttp", "rich", "prometheus_client"]
    heavy += ["starlette", "fencepost.api.app"]
    code = f"import sys, fencepost.client; print([m for m in {heavy!r} if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert loaded.stdout.strip() == "[]"
