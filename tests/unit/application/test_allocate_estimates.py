"""A rejected dry run: only a verdict of the EVM is final, everything else is retried."""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn
from uuid import UUID

import pytest

from fakes.bench import QUICK, SINK, Bench
from fencepost.adapters.evm.revert import refusal_reason
from fencepost.application.allocate import MAX_ESTIMATE_PAUSE_S, MAX_ESTIMATE_REFUSALS
from fencepost.domain.ids import Address
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent
from fencepost.errors import RpcError, RpcRefused, RpcUnavailable, TypeNotSupported
from fencepost.testing import InMemoryChain

# Answers of gateways and endpoints that cannot answer now, or not at this endpoint.
PASSING = [
    ("header not found", -32000),
    ("missing trie node 1f2e (path )", -32000),
    ("execution timeout", -32000),
    ("execution aborted (timeout = 5s)", -32000),
    ("request timed out", -32002),
    ("Your app has exceeded its compute units per second capacity", 429),
    ("limit exceeded", -32005),
    ("the method eth_estimateGas does not exist/is not available", -32601),
    ("Internal error", -32603),
    ("block not found: latest", -32001),
    ("World state unavailable", -32000),
    ("project ID request rate exceeded", -32005),
]

# Answers of the EVM about this call.
FINAL = [
    ("execution reverted: not today", 3),
    ("out of gas", -32000),
    ("out of gas: gas required exceeds: 30000000", -32000),
    ("gas required exceeds allowance (50000000)", -32000),
    ("intrinsic gas too low", -32000),
    ("invalid opcode: INVALID", -32000),
    ("EVM error: InvalidFEOpcode", -32000),
    ("invalid jump destination", -32000),
    ("stack underflow (0 <=> 1)", -32000),
    ("max initcode size exceeded", -32000),
    ("Transaction processing could not be completed due to an exception", -32000),
    ("VM execution error.", -32015),
    ("VM Exception while processing transaction: revert", -32000),
]


@pytest.mark.parametrize(("text", "code"), PASSING)
def test_a_temporary_error_is_no_verdict(text: str, code: int) -> None:
    assert refusal_reason(text, rpc_code=code, data=None) is None


@pytest.mark.parametrize(("text", "code"), FINAL)
def test_an_evm_error_is_a_verdict(text: str, code: int) -> None:
    assert refusal_reason(text, rpc_code=code, data=None) is not None


class _Refusing(InMemoryChain):
    """A chain that rejects dry runs of calls to `SINK` on demand."""

    refuses = True
    error: RpcError = RpcRefused("header not found", rpc_code=-32000)

    async def estimate_gas(self, sender: Address, call: Call) -> int:
        if self.refuses and call.to == SINK:
            self._refuse()
        return await super().estimate_gas(sender, call)

    def _refuse(self) -> NoReturn:
        raise self.error


def _refusing(bench: Bench) -> _Refusing:
    bench.chain.__class__ = _Refusing
    assert isinstance(bench.chain, _Refusing)
    return bench.chain


async def test_a_temporary_rejection_fails_nothing_and_is_retried() -> None:
    bench = Bench()
    chain = _refusing(bench)
    at = bench.node()
    first, second = await bench.requests(2)
    again_s = await at.turn()
    assert again_s is not None
    assert 0 < again_s <= MAX_ESTIMATE_PAUSE_S
    assert _states(bench, first, second) == [State.QUEUED] * 2
    for _ in range(MAX_ESTIMATE_REFUSALS + 2):
        bench.clock.advance(MAX_ESTIMATE_PAUSE_S + 1)
        await at.turn()
    waiting = bench.tx(first)
    assert (waiting.state, waiting.sub_state) == (State.QUEUED, SubState.STUCK)
    assert "header not found" in (waiting.error or "")
    assert bench.events(first).count("Stuck") == 1
    chain.refuses = False
    bench.clock.advance(MAX_ESTIMATE_PAUSE_S + 1)
    await at.turn()
    assert _states(bench, first, second) == [State.SUBMITTED] * 2
    assert (bench.tx(first).sub_state, bench.tx(first).error) == (None, None)


@pytest.mark.parametrize("error", [RpcRefused("header not found"), RpcUnavailable("HTTP 403")])
async def test_a_request_with_its_own_gas_limit_skips_the_dry_run_after_a_while(error: RpcError) -> None:
    bench = Bench()
    _refusing(bench).error = error
    at = bench.node(QUICK)
    tx_id = await bench.request(Intent(call=Call(to=SINK), gas=50_000))
    for _ in range(MAX_ESTIMATE_REFUSALS + 1):
        bench.clock.advance(MAX_ESTIMATE_PAUSE_S + 1)
        with suppress(RpcUnavailable):  # the lane pauses and retries
            await at.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    assert bench.tx(tx_id).latest.gas == 50_000


async def test_an_unanswered_dry_run_counts_once_and_its_pause_only_doubles() -> None:
    bench = Bench()
    _refusing(bench).error = RpcUnavailable("HTTP 403")
    at = bench.node(QUICK)
    tx_id = await bench.request()
    pauses_s: list[float] = []
    for _ in range(MAX_ESTIMATE_REFUSALS + 1):
        bench.clock.advance(MAX_ESTIMATE_PAUSE_S + 1)
        with suppress(RpcUnavailable):
            pauses_s.append(await at.turn() or 0.0)
    assert f"eth_estimateGas {MAX_ESTIMATE_REFUSALS} times" in (bench.tx(tx_id).error or "")
    assert pauses_s[1] == pytest.approx(2 * pauses_s[0])


async def test_an_access_list_that_the_chain_does_not_know_fails_the_request_and_not_the_signer() -> None:
    bench = Bench()
    _refusing(bench).error = TypeNotSupported("Eip2930 is not supported")
    at = bench.node()
    first, second = await bench.request(), await bench.request(Intent(call=Call(to=bench.signer.address)))
    await at.turn()
    assert _states(bench, first, second) == [State.FAILED, State.SUBMITTED]
    assert bench.tx(first).error == "the chain does not support access lists: Eip2930 is not supported"


async def test_an_evm_verdict_fails_the_request() -> None:
    bench = Bench()
    at = bench.node()
    bench.chain.reverting_calls[SINK] = "out of gas"
    tx_id = await bench.request()
    await at.turn()
    assert bench.state(tx_id) is State.FAILED


def _states(bench: Bench, *tx_ids: UUID) -> list[State]:
    return [bench.state(tx_id) for tx_id in tx_ids]
