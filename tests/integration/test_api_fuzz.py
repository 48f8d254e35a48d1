"""Random calls within and outside the OpenAPI document: no 5xx, and no answer that the document does not describe.

Schemathesis makes the calls from the document of a running node, seeded, a fixed number per operation. Many of them name existing
objects of the node, so that they pass authentication and lookup.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation

from fixtures.api import RECEIVER, ApiServer

SEED = 20_26
EXAMPLES = {GenerationMode.POSITIVE: 5, GenerationMode.NEGATIVE: 3}
ANSWER_WITHIN_S = 20.0
WAIT_S = "0.05"

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def bound_waiting(case: Case[Any]) -> None:
    """Shorten the wait of a call: the test is about the answer, not the wait."""
    if any(parameter.name == "timeout" for parameter in case.operation.query):
        case.query = {**(case.query or {}), "timeout": WAIT_S}
    for name in [name for name in case.headers or {} if name.lower() == "prefer"]:
        del case.headers[name]


@dataclass(frozen=True, slots=True)
class Known:
    """Objects of this node that a call can name."""

    address: str
    tx_id: str
    chain_id: int
    subscription_id: str

    def put_into(self, case: Case[Any]) -> None:
        path = case.path_parameters or {}
        path.update({name: value for name, value in self._path.items() if name in path})
        if "chainId" in (case.query or {}):
            case.query["chainId"] = str(self.chain_id)
        if isinstance(case.body, dict) and "payload" in case.body:
            case.body.pop("submitter", None)
            case.body |= {"signer": self.address, "chainId": self.chain_id}
            case.body["payload"] = {"to": RECEIVER, "value": 1}

    @property
    def _path(self) -> dict[str, str]:
        return {
            "address": self.address,
            "txId": self.tx_id,
            "commandId": "1",
            "subscriptionId": self.subscription_id,
            "chainId": str(self.chain_id),
        }


def try_operation(
    operation: APIOperation[Any, Any, Any, Any], *, mode: GenerationMode, known: Sequence[Known], url: str
) -> Counter[int]:
    """Count the answers by status."""
    answers: Counter[int] = Counter()

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=EXAMPLES[mode],
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(
        case=operation.as_strategy(generation_mode=mode), known_one=st.none() | st.sampled_from(known)
    )
    def run(case: Case[Any], known_one: Known | None) -> None:
        bound_waiting(case)
        if known_one is not None:
            known_one.put_into(case)
        answer = case.call_and_validate(base_url=url, session=session, checks=CHECKS, timeout=ANSWER_WITHIN_S)
        answers[answer.status_code] += 1

    with requests.Session() as session:
        run()
    return answers


def try_all(url: str, known: Sequence[Known]) -> dict[str, Counter[int]]:
    """Count the answers by operation and status."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    answers: dict[str, Counter[int]] = {}
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        modes = [GenerationMode.POSITIVE]
        if list(operation.iter_parameters()) or operation.body:  # without parameters there is nothing to vary
            modes.append(GenerationMode.NEGATIVE)
        answers[operation.label] = sum(
            (try_operation(operation, mode=mode, known=known, url=url) for mode in modes), Counter()
        )
    return answers


async def known_to(api: ApiServer) -> list[Known]:
    """Create a signer with a finished transaction, and a paused signer with a queued one."""
    ended, waiting = api.signers[:2]
    paused = await api.post(f"/signers/{waiting}/pause", timeout=ANSWER_WITHIN_S)
    assert paused.status == 200
    first = await api.post("/tx", api.transfer("ended"), wait="confirmed", timeout=ANSWER_WITHIN_S)
    second = await api.post("/tx", api.transfer("waiting", signer=waiting))
    assert (first.json["state"], second.json["state"]) == ("CONFIRMED", "QUEUED")
    chain_id = first.json["chainId"]
    subscribed = [(await api.post("/subscriptions", {"type": "websocket"})).json["id"] for _ in range(2)]
    return [
        Known(ended, first.json["txId"], chain_id, subscribed[0]),
        Known(waiting, second.json["txId"], chain_id, subscribed[1]),
    ]


async def test_every_answer_is_described_by_the_document(api: ApiServer) -> None:
    answers = await asyncio.to_thread(try_all, api.url, await known_to(api))
    policy = "/api/v1/signers/{address}/policy"
    assert {f"GET {policy}", f"PUT {policy}", f"DELETE {policy}", "POST /api/v1/tx"} <= answers.keys()
    assert all(answers.values()), answers
    done = [label for label, by_status in answers.items() if {200, 202} & by_status.keys()]
    assert 2 * len(done) > len(answers), f"the calls did not get far: {answers}"
    assert (await api.get("/readyz")).status == 200
