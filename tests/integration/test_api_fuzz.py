"""Whatever the OpenAPI document allows, and much that it does not: no 5xx, and no answer that the document does not know.

Schemathesis makes the calls from the document of a running node, seeded, a fixed number for each operation. Many
of them name what the node has where the document asks for something of the kind, so that they get past the gate.
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

from fix_api import SOMEBODY, Door

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
    """A call that may wait waits for a moment only: what is tried here is the answer, not the patience."""
    if any(parameter.name == "timeout" for parameter in case.operation.query):
        case.query = {**(case.query or {}), "timeout": WAIT_S}
    for name in [name for name in case.headers or {} if name.lower() == "prefer"]:
        del case.headers[name]


@dataclass(frozen=True, slots=True)
class Known:
    """What this node has, to be named where the document asks for anything of the kind."""

    address: str
    tx_id: str
    chain_id: int

    def put_into(self, case: Case[Any]) -> None:
        path = case.path_parameters or {}
        path.update({name: value for name, value in self._path.items() if name in path})
        if "chainId" in (case.query or {}):
            case.query["chainId"] = str(self.chain_id)
        if isinstance(case.body, dict) and "payload" in case.body:
            case.body.pop("submitter", None)
            case.body |= {"signer": self.address, "chainId": self.chain_id}
            case.body["payload"] = {"to": SOMEBODY, "value": 1}

    @property
    def _path(self) -> dict[str, str]:
        return {"address": self.address, "txId": self.tx_id, "commandId": "1"}


def try_operation(
    operation: APIOperation[Any, Any, Any, Any], *, mode: GenerationMode, known: Sequence[Known], url: str
) -> Counter[int]:
    """The answers by status."""
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
    """The answers by operation and status."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    answers: dict[str, Counter[int]] = {}
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        modes = [GenerationMode.POSITIVE]
        if list(operation.iter_parameters()) or operation.body:  # without them there is nothing to get wrong
            modes.append(GenerationMode.NEGATIVE)
        answers[operation.label] = sum(
            (try_operation(operation, mode=mode, known=known, url=url) for mode in modes), Counter()
        )
    return answers


async def known_to(door: Door) -> list[Known]:
    """A signer with a transaction that has ended, and a paused one with a transaction that waits."""
    ended, waiting = door.signers[:2]
    paused = await door.post(f"/signers/{waiting}/pause", timeout=ANSWER_WITHIN_S)
    assert paused.status == 200
    first = await door.post("/tx", door.transfer("ended"), wait="confirmed", timeout=ANSWER_WITHIN_S)
    second = await door.post("/tx", door.transfer("waiting", signer=waiting))
    assert (first.json["state"], second.json["state"]) == ("CONFIRMED", "QUEUED")
    chain_id = first.json["chainId"]
    return [Known(ended, first.json["txId"], chain_id), Known(waiting, second.json["txId"], chain_id)]


async def test_no_call_gets_an_answer_that_the_document_does_not_know(door: Door) -> None:
    answers = await asyncio.to_thread(try_all, door.url, await known_to(door))
    policy = "/api/v1/signers/{address}/policy"
    assert {f"GET {policy}", f"PUT {policy}", f"DELETE {policy}", "POST /api/v1/tx"} <= answers.keys()
    assert all(answers.values()), answers
    done = [label for label, by_status in answers.items() if {200, 202} & by_status.keys()]
    assert 2 * len(done) > len(answers), f"the calls did not get far: {answers}"
    assert (await door.get("/readyz")).status == 200
