"""Many lanes in one pass: those of a chain that have something plain to do do it side by side.

With one transaction each, lanes would spend most of their time on being lanes. Here all of them look up receipts
together, sign together, write together and send together. What is done for a lane, and in which order, is what its
`step` would do: receipts, nonces, sends. Each write is that lane's own, under its own token, whole or nothing, so dying
on any line leaves what dying there in a step leaves.

Who is plain is asked first. Whoever meets anything else on the way is left as it is, and steps alone: there it meets
the same again, and is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from fencepost.application import attempts
from fencepost.application.allocate import (
    MOST_AT_ONCE,
    Priced,
    allocations,
    priced_at_once,
    share_of,
    to_be_signed,
)
from fencepost.application.broadcast import hold_answers, take_answers, waiting_to_be_sent, went_well
from fencepost.application.lane import Lane, Policy, StateMoved
from fencepost.application.ports import Chain, Cursor, LaneWrite, TxChange
from fencepost.application.sequence import is_checked
from fencepost.application.step import take_arrivals
from fencepost.application.track import (
    Depths,
    due_for_look_up,
    hashes_of,
    is_written_with_next,
    told_by_receipts,
)
from fencepost.domain.ids import Signer
from fencepost.domain.managed import ManagedTx, Purpose
from fencepost.domain.states import CursorState
from fencepost.domain.transaction import UnsignedTx
from fencepost.errors import Fenced, FencepostError, RpcError

# What every lane meets; Python 3.11 calls a function to find a member of an enumeration.
_ACTIVE = CursorState.ACTIVE


class StepAlone(Exception):
    """The lane met something that its own step has to see to."""


class _Planned(NamedTuple):
    lane: Lane
    cursor: Cursor
    priced: list[Priced]
    txs: list[UnsignedTx]


def may_be_plain(policy: Policy) -> bool:
    """Strict lanes go on where a step of theirs ends; who looks for receipts at once looks for its own."""
    return not (policy.strict or policy.fetch_receipt_upon_entry)


def is_plain(lane: Lane) -> bool:
    """There are receipts to fetch, nonces to give or sends to write down, and nothing else to see to or to doubt."""
    cursor, now_s = lane.cursor, lane.clock.now_s()
    if (
        cursor is None
        or cursor.state is not _ACTIVE
        or not lane.reconciled
        or lane.commands_may_wait
        or lane.queue_may_have_more
        or lane.must_look_up
        or lane.doubts_history
        or lane.hold_allocation_until_s
        or lane.ahead_looked_s is not None
        or lane.is_unsure
        or not (may_be_plain(lane.policy) and is_checked(lane, now_s))
    ):
        return False
    for tx in lane.in_flight.values():
        # Each has bytes, waits for its block, and is not to be sent again yet.
        if tx.mined is not None or not tx.attempts:
            return False
        if tx.resubmit_due_s is not None and tx.resubmit_due_s <= now_s:
            return False
    return bool(lane.seen or lane.queue or lane.queue.arrived or lane.due())


def weight(lane: Lane, at_most: int) -> int:
    """How many transactions of it a sweep is about: with too many, the others would wait for them."""
    return max(1, len(lane.seen), min(len(lane.queue) + len(lane.queue.arrived), at_most))


async def sweep(lanes: Sequence[Lane], at_most: int = MOST_AT_ONCE) -> Mapping[Signer, Exception]:
    """Those that did not get through, and why. `at_most` nonces are given to each: more is for the next time."""
    walk = _Walk(at_most)
    await walk.take_receipts(lanes)
    await walk.give_nonces(walk.still(lanes))
    await walk.send(walk.still(lanes))
    await walk.write_due(walk.still(lanes))
    return walk.left


class _Walk:
    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self.left: dict[Signer, Exception] = {}

    def still(self, lanes: Iterable[Lane]) -> list[Lane]:
        return [lane for lane in lanes if lane.signer not in self.left] if self.left else list(lanes)

    def _leave(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self.left[lane.signer] = StepAlone()

    # ---- receipts

    async def take_receipts(self, lanes: Sequence[Lane]) -> None:
        """What ended is written now, or with the nonces that follow it."""
        ended = await self._ends(lanes)
        writes: list[tuple[Lane, LaneWrite]] = []
        for lane, changes in ended:
            if is_written_with_next(lane):
                lane.hold(changes, for_s=0)
            else:
                writes.append((lane, lane.write(changes)))
        await self._commit(writes, op="receipt")
        self._leave(lane for lane, _ in ended if lane.has_mined)

    async def _ends(self, lanes: Sequence[Lane]) -> Sequence[tuple[Lane, Sequence[TxChange]]]:
        asked = [(lane, txs) for lane in lanes if (txs := due_for_look_up(lane))]
        if not asked:
            return ()
        try:
            hashes = [tx_hash for _, txs in asked for tx_hash in hashes_of(txs)]
            receipts = await lanes[0].watch.receipts.of(lanes[0].chain, hashes)
        except RpcError:
            for lane, _ in asked:
                lane.must_look_up = True
            self._leave(lane for lane, _ in asked)
            return ()
        found = {receipt.tx_hash: receipt for receipt in receipts if receipt is not None}
        depths: Depths = {}
        ended: list[tuple[Lane, Sequence[TxChange]]] = []
        for lane, txs in asked:
            changes = told_by_receipts(lane, txs, found, depths)
            lane.observer.note("receipts", signer=lane.signer, asked=len(txs), found=len(changes))
            if changes:
                ended.append((lane, changes))
            if len(changes) < len(txs):
                lane.must_look_up = True
                self._leave([lane])
        return ended

    # ---- nonces

    async def give_nonces(self, lanes: Sequence[Lane]) -> None:
        await self._commit(await self._allocations(lanes), op="allocate")

    async def _allocations(self, lanes: Sequence[Lane]) -> Sequence[tuple[Lane, LaneWrite]]:
        wanting = [lane for lane in lanes if lane.queue or lane.queue.arrived]
        planned = [plan for lane in wanting if (plan := await self._plan(lane)) is not None]
        if not planned:
            return ()
        signed = await lanes[0].keys.sign_each([(lane.signer.address, txs) for lane, _, _, txs in planned])
        writes: list[tuple[Lane, LaneWrite]] = []
        for (lane, cursor, priced, txs), raw in zip(planned, signed, strict=True):
            if isinstance(raw, BaseException) or not lane.is_trusted:
                self._leave([lane])
                continue
            made = attempts.made(txs, raw, numbers=[1] * len(txs), purpose=Purpose.INTENT)
            changes = allocations(lane, cursor, priced, made)
            writes.append((lane, lane.write(changes, cursor=cursor.past(len(changes)))))
        return writes

    async def _plan(self, lane: Lane) -> _Planned | None:
        take_arrivals(lane)
        try:
            quoted = await attempts.quote(lane)
        except RpcError:
            self._leave([lane])
            return None
        cursor, priced = lane.cursor, priced_at_once(lane, quoted, share_of(lane, self._at_most))
        if cursor is None or priced is None or lane.queue_may_have_more or not lane.is_trusted:
            self._leave([lane])
            return None
        return _Planned(lane, cursor, priced, to_be_signed(lane, cursor, priced)) if priced else None

    # ---- sends

    async def send(self, lanes: Sequence[Lane]) -> None:
        """In a crowd, what was refused or not answered goes out once more when its lane steps alone: the same bytes."""
        sending: dict[Chain, list[tuple[Lane, list[ManagedTx]]]] = {}
        for lane in lanes:
            if waiting := waiting_to_be_sent(lane):
                if lane.is_trusted:
                    sending.setdefault(lane.chain, []).append((lane, waiting))
                else:
                    self._leave([lane])
        for chain, crowd in sending.items():
            results = await chain.send([tx.latest.signed for _, txs in crowd for tx in txs])
            answers = iter(results)
            for lane, txs in crowd:
                said = list(islice(answers, len(txs)))
                try:
                    if all(map(went_well, txs, said)):
                        hold_answers(lane, txs, said)
                    elif len(crowd) == 1:  # nobody else waits for what a refusal takes
                        await take_answers(lane, txs, said)
                    else:
                        self._leave([lane])
                except FencepostError as error:
                    self.left[lane.signer] = error

    async def write_due(self, lanes: Sequence[Lane]) -> None:
        await self._commit([(lane, lane.write()) for lane in lanes if lane.due()], op="held")

    async def _commit(self, writes: Sequence[tuple[Lane, LaneWrite]], *, op: str) -> None:
        """An error of the ledger is everybody's: nobody knows what became of the writes."""
        if not writes:
            return
        written = await writes[0][0].ledger.commit_each([write for _, write in writes])
        for (lane, write), answer in zip(writes, written, strict=True):
            try:
                lane.wrote(write, answer, op=op)
            except (Fenced, StateMoved) as error:
                self.left[lane.signer] = error
