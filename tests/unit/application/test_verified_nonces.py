"""A cursor begins or moves only by nonces of endpoints whose identity was verified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from fakes.bench import QUICK, Bench
from fencepost.application.nonce_sync import ADOPT_AFTER_S
from fencepost.application.verified_nonces import verified_nonces
from fencepost.domain.ids import Address
from fencepost.errors import WrongChain

OTHER_NONCE = 743


@dataclass(slots=True)
class Gateway:
    """An endpoint that keeps its connections while it is pointed at another chain."""

    honest: Callable[[Address, Literal["latest", "pending"]], Awaitable[int]]
    is_wrong: bool = True
    is_identified: bool = False
    checks: int = 0
    on_check: Callable[[], None] = lambda: None

    async def nonce(self, address: Address, tag: Literal["latest", "pending"]) -> int:
        if self.is_wrong and self.is_identified:
            raise WrongChain("the endpoint serves another chain")
        return OTHER_NONCE if self.is_wrong else await self.honest(address, tag)

    async def check_identity(self) -> None:
        self.checks += 1
        self.on_check()
        if self.is_wrong:
            self.is_identified = True
            raise WrongChain("the endpoint serves another chain")


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def gateway(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    gateway = Gateway(bench.chain.nonce)
    monkeypatch.setattr(bench.chain, "nonce", gateway.nonce)
    monkeypatch.setattr(bench.chain, "check_identity", gateway.check_identity)
    return gateway


@pytest.mark.parametrize("shared", [False, True])
async def test_a_sequence_does_not_begin_at_the_nonce_of_another_chain(
    bench: Bench, gateway: Gateway, *, shared: bool
) -> None:
    node = bench.node(replace(QUICK, start_from="chain", shared_key=shared))
    await bench.request()
    with pytest.raises(WrongChain):
        await node.turn()
    assert bench.signer not in bench.database.cursors
    gateway.is_wrong = False
    await node.turn()
    assert bench.sent_nonces() == [0]


async def test_a_nonce_is_not_used_if_the_endpoint_was_pointed_back_before_the_check(
    bench: Bench, gateway: Gateway
) -> None:
    def point_back() -> None:
        gateway.is_wrong = False

    gateway.on_check = point_back
    node = bench.node(replace(QUICK, start_from="chain"))
    await bench.request()
    await node.turn()
    assert bench.sent_nonces() == [0]
    assert gateway.checks == 2  # the relevant nonce was read between the checks


async def test_a_signer_with_a_shared_key_does_not_adopt_a_nonce_of_another_chain(
    bench: Bench, gateway: Gateway
) -> None:
    gateway.is_wrong = False
    node = bench.node(replace(QUICK, shared_key=True, chain_query="pending", state_timeout_s=0.0))
    await node.ended(1)
    gateway.is_wrong = True

    def point_back() -> None:
        gateway.is_wrong = False

    gateway.on_check = point_back
    await bench.request()
    await node.turn_for(2 * ADOPT_AFTER_S)
    assert not gateway.is_wrong
    assert bench.sent_nonces() == [0, 1]


async def test_unchanged_nonces_need_one_check(bench: Bench, gateway: Gateway) -> None:
    gateway.is_wrong = False
    node = bench.node()
    await bench.request()
    await node.turn()
    gateway.checks = 0
    bench.chain.mine()
    nonces = await verified_nonces(node.lane)
    assert (nonces.latest, nonces.pending, gateway.checks) == (1, 1, 1)
