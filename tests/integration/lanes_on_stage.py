"""Lanes over the real ledger and a fake chain: a process dies or gets a misleading answer.

The module also contains use cases with known flaws that lose or repeat transactions. The value identifies an effect: a request
for n wei is effect n.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from fakes.rounds import run_alone
from fencepost.adapters.evm.encoding import decode_signed
from fencepost.adapters.postgres.database import Connection
from fencepost.adapters.signers.local import LocalKeys
from fencepost.application import signing
from fencepost.application.chain_view import ChainView
from fencepost.application.hooks import StuckDecision
from fencepost.application.lane import Lane, LaneSettings
from fencepost.application.lane_parts import LanePorts
from fencepost.application.reconcile import reconcile
from fencepost.domain import transaction_state
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.transaction import Call, Fees, SignedTx, UnsignedTx
from fencepost.domain.transaction_state import ManagedTx, Purpose
from fencepost.testing import InMemoryChain, LostResponse
from integration.schedules import Verdict
from integration.stage import Owner, Stage

KEYS = LocalKeys.from_hex(["0x" + "42" * 32])
SIGNER = Signer(31_337, KEYS.addresses()[0])
POLICY = LaneSettings(
    required=1, fixed_fees=Fees(fee_cap_wei=3 * 10**9, tip_wei=10**9), resubmit_interval_s=1.0
)
MAX_ROUNDS = 30


class Died(Exception):
    """The process ends here."""


@dataclass(slots=True)
class ManualClock:
    at_s: float = 1000.0

    def now_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class WatchedChain(InMemoryChain):
    """A chain that records bytes that arrive before they are stored and its answers, and can end the sending process."""

    def __init__(self, ledger: Connection) -> None:
        super().__init__(_decode_for_pool)
        self._ledger = ledger
        self.unstored: list[TxHash] = []
        self.answers: list[SendCategory] = []
        self.kills_the_sender = False

    async def send(self, txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        for tx in txs:
            if not await self._ledger.fetchval("SELECT 1 FROM tx_attempt WHERE tx_hash = $1", tx.hash):
                self.unstored.append(tx.hash)
        results = await super().send(txs)
        self.answers += [result.category for result in results]
        if self.kills_the_sender:
            self.kills_the_sender = False
            raise Died
        return results

    def effects(self) -> list[int]:
        """Return the values of everything that is mined, in order."""
        by_hash = {tx.hash: decode_signed(tx.raw).tx.call.value_wei for tx in self.sent}
        return [by_hash[tx_hash] for mined in self._blocks for tx_hash in self._block(mined).tx_hashes]

    def intents_by_nonce(self) -> dict[int, set[int]]:
        intents: dict[int, set[int]] = defaultdict(set)
        for sent in self.sent:
            said = decode_signed(sent.raw).tx
            intents[said.nonce].add(said.call.value_wei)
        return intents


def _decode_for_pool(raw: bytes) -> tuple[Address, int, int, int, Call]:
    decoded = decode_signed(raw)
    fees = decoded.tx.fees
    return decoded.sender, decoded.tx.nonce, fees.tip_wei, fees.fee_cap_wei, decoded.tx.call


def _decode(raw: bytes) -> tuple[Address, UnsignedTx, TxHash]:
    decoded = decode_signed(raw)
    return decoded.sender, decoded.tx, decoded.hash


class Silent:
    def note(self, event: str, /, **fields: object) -> None:
        pass


async def _wait(_tx: ManagedTx) -> StuckDecision:
    return "wait"


@dataclass(slots=True)
class Play:
    """One signer, one chain, and the current owner of the lane."""

    stage: Stage
    chain: WatchedChain
    watch: ChainView = field(init=False)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.watch = ChainView(self.chain)

    async def lane(self, owner: Owner) -> Lane:
        """Open a lane in a new term, as after a start or a take-over."""
        await self.stage.expire()
        ledger = await self.stage.ledger(owner, clock=self.clock)
        (term,) = await ledger.acquire([SIGNER])
        await self.watch.refresh()
        return Lane(
            term=term,
            settings=POLICY,
            ports=LanePorts(
                ledger=ledger,
                chain=self.chain,
                chain_view=self.watch,
                keys=KEYS,
                clock=self.clock,
                observer=Silent(),
                stuck_hook=_wait,
                handlers={},
                decode=_decode,
            ),
        )

    async def request(self, value_wei: int) -> ManagedTx:
        return await self.stage.request(value_wei, signer=SIGNER)

    async def finish(self, lane: Lane, *wanted: UUID) -> None:
        """Mine and step until all given transactions have finished."""
        for _ in range(MAX_ROUNDS):
            self.chain.mine()
            await self.watch.refresh()
            lane.blocks.must_fetch_receipts = True
            self.clock.at_s += 1.0
            lane.term = lane.term.renewed(self.clock.at_s)
            await run_alone(lane)
            txs = [await lane.ports.ledger.get(tx_id) for tx_id in wanted]
            if all(tx is not None and tx.is_terminal for tx in txs) or lane.is_protected:
                return
        raise AssertionError(f"not finished after {MAX_ROUNDS} rounds")


def play(stage: Stage) -> Play:
    return Play(stage, WatchedChain(stage.admin))


# ---- schedules

Use = Callable[[Lane], Awaitable[object]]


async def dies_while_sending(stage: Stage, *, send_one: Use) -> Verdict:
    """The endpoint has the bytes, and the process dies before it can write anything more."""
    scene = play(stage)
    tx = await scene.request(1)
    lane = await scene.lane(stage.old)
    scene.chain.kills_the_sender = True
    try:
        await send_one(lane)
    except Died:
        pass
    else:
        raise AssertionError("it did not send")
    if scene.chain.unstored:
        return f"{len(scene.chain.unstored)} transactions were sent before they were stored"
    await scene.finish(await scene.lane(stage.new), tx.tx_id)
    effects = scene.chain.effects()
    return None if effects == [1] else f"effects are {effects}"


async def nonce_is_too_low(stage: Stage, *, send_again: Callable[[Play, Lane], Awaitable[None]]) -> Verdict:
    """The first answer was lost, the bytes were mined, and the second send gets a misleading `nonce too low`."""
    scene = play(stage)
    tx = await scene.request(1)
    lane = await scene.lane(stage.old)
    scene.chain.script_next_sends(LostResponse.AFTER)
    await run_alone(lane)
    scene.chain.mine()
    await send_again(scene, lane)
    assert SendCategory.NONCE_TOO_LOW in scene.chain.answers, "the bytes were not sent a second time"
    await scene.finish(lane, tx.tx_id)
    scene.chain.mine()
    effects = scene.chain.effects()
    return None if effects == [1] else f"one request was mined {len(effects)} times"


async def send_fails(stage: Stage, *, after_failure: Callable[[Play, Lane], Awaitable[None]]) -> Verdict:
    """The answer to a send is lost although the endpoint accepted the bytes; another request waits."""
    scene = play(stage)
    first, second = await scene.request(1), await scene.request(2)
    lane = await scene.lane(stage.old)
    scene.chain.script_next_sends(LostResponse.AFTER)
    await run_alone(lane)
    await after_failure(scene, lane)
    await scene.finish(lane, first.tx_id, second.tx_id)
    shared = {nonce: intents for nonce, intents in scene.chain.intents_by_nonce().items() if len(intents) > 1}
    if shared:
        return f"several requests on one nonce: {shared}"
    effects = scene.chain.effects()
    return None if effects == [1, 2] else f"effects are {effects}"


# ---- the product's behaviour


async def step_again(scene: Play, lane: Lane) -> None:
    """Send the identical bytes once they are due."""
    scene.clock.at_s += 1.0
    await run_alone(lane)


async def nothing_special(_scene: Play, _lane: Lane) -> None:
    pass


# ---- flawed use cases


async def broadcast_then_persist(lane: Lane) -> None:
    await reconcile(lane)
    tx = lane.queue[0]
    attempt = await _sign_at(lane, tx, nonce=0)
    await lane.ports.chain.send([attempt.signed])
    await lane.commit(
        [lane.change(tx, partial(transaction_state.assign_nonce, nonce=0, attempt=attempt))], op="too late"
    )


async def fresh_nonce_when_too_low(scene: Play, lane: Lane) -> None:
    """Take the next nonce for the same intent after `nonce too low`."""
    tx = lane.unmined[0]
    (result,) = await lane.ports.chain.send([tx.latest.signed])
    assert result.category is SendCategory.NONCE_TOO_LOW
    assert result.chain_nonce is not None
    attempt = await _sign_at(lane, tx, nonce=result.chain_nonce)
    await lane.ports.chain.send([attempt.signed])
    scene.chain.mine()


async def _sign_at(lane: Lane, tx: ManagedTx, *, nonce: int) -> transaction_state.Attempt:
    assert lane.settings.fixed_fees is not None
    wanted = signing.build_unsigned(
        lane,
        tx.changed(attempts=()),
        nonce=nonce,
        gas=21_000,
        fees=lane.settings.fixed_fees,
        purpose=Purpose.INTENT,
    )
    return (await signing.sign(signing.Batch(lane, [tx.changed(attempts=())], [wanted])))[0]


async def release_the_nonce(scene: Play, lane: Lane) -> None:
    """Count a missing answer as not sent: fail the request and give its nonce to the next one."""
    failed, admin = lane.unmined[0], scene.stage.admin
    await admin.execute("DELETE FROM tx_attempt WHERE tx_id = $1", failed.tx_id)
    await admin.execute(
        "UPDATE managed_tx SET state = 'FAILED', is_live = false, nonce = NULL, finished_at = now() WHERE tx_id = $1",
        failed.tx_id,
    )
    await admin.execute("UPDATE signer_nonce_cursor SET next_nonce = next_nonce - 1")
    lane.settings = replace(lane.settings, chain_query="off")
    await reconcile(lane)
