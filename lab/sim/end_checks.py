"""Turn the end of a simulated run into a history, and find every violation in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from fencepost.domain.states import State
from fencepost.domain.transaction_state import Kind, ManagedTx, Purpose
from lab.checker.history import (
    AttemptRow,
    ChainBlock,
    ChainTx,
    CursorRow,
    History,
    JournalLine,
    TxRow,
    effect_of,
)
from lab.checker.invariants import Violation, check
from lab.sim.keys import decode
from lab.sim.recorder import UNNUMBERED
from lab.sim.world import World


def find_violations(world: World) -> list[Violation]:
    found = [
        *world.recorder.violations,
        *check(history(world)),
        *_ended_badly(world),
        *_done_all_the_same(world),
        *_done_twice(world),
        *_out_of_order(world),
    ]
    for failure in world.loop.failures:
        error = failure.get("exception")
        found.append(
            Violation(14, f"no code caught {type(error).__name__}: {error}", str(failure["message"]))
        )
    names = {str(tx_id): f"r{number}" for number, tx_id in world.by_number.items()}
    return [Violation(v.invariant, _named(v.what, names), _named(v.where, names)) for v in found]


def _named(text: str, names: dict[str, str]) -> str:
    """Replace transaction ids, which differ from run to run, by the numbers of the requests."""
    for tx_id, name in names.items():
        text = text.replace(tx_id, name)
    return text


def _ended_badly(world: World) -> Iterator[Violation]:
    """Find failures and cancellations without a cause outside the program."""
    stolen = set(world.chain.mined_by(world.recorder.foreign_hashes()))
    for tx in world.database.txs.values():
        if tx.state not in (State.FAILED, State.CANCELLED) or tx.tx_id in world.recorder.may_fail:
            continue
        if tx.nonce is None or (tx.signer.address, tx.nonce) not in stolen:
            yield Violation(8, f"{tx.tx_id} is {tx.state} without a reason ({tx.error})", tx.signer.address)


def _done_all_the_same(world: World) -> Iterator[Violation]:
    """Find transactions that are FAILED or CANCELLED but mined, and CONFIRMED ones that reverted."""
    mined = {tx_hash for _, txs in world.chain.canonical() for tx_hash, _, _ in txs}
    for tx in world.database.txs.values():
        ours = {attempt.signed.hash for attempt in tx.attempts if attempt.purpose is Purpose.INTENT} & mined
        reverted = bool(ours & world.chain.reverting.keys())
        if (
            tx.state in (State.FAILED, State.CANCELLED)
            and ours
            and not (reverted and tx.state is State.FAILED)
        ):
            yield Violation(8, f"{tx.tx_id} is {tx.state}, but it is mined", tx.signer.address)
        if tx.state is State.CONFIRMED and reverted:
            yield Violation(9, f"{tx.tx_id} is {tx.state}, but it reverted", tx.signer.address)


def _done_twice(world: World) -> Iterator[Violation]:
    """Find requests that were mined, lost with their commit, and mined again."""
    lost = world.recorder.lost
    if not lost:
        return
    effects = lost | {sent.tx.hash: sent.tx.effect for sent in world.recorder.sent}
    times = Counter(
        (sender, effects[tx_hash])
        for _, txs in world.chain.canonical()
        for tx_hash, sender, _ in txs
        if tx_hash in effects
    )
    for (sender, effect), count in times.items():
        is_filler = effect == effect_of(to=sender, value_wei=0, data="")
        if count > 1 and effect in lost.values() and not is_filler:
            yield Violation(8, f"{effect!r} is mined twice: its commit was lost, its bytes were not", sender)


def _out_of_order(world: World) -> Iterator[Violation]:
    """Find nonces that do not follow the order of arrival; suspended transactions are exempt."""
    held_back = {row.tx_id for row in world.database.journal if row.event == "Suspend"}
    for signer in world.signers:
        txs = [
            tx
            for tx in world.database.of_signer(signer)
            if tx.nonce is not None and tx.kind is not Kind.FILLER and tx.tx_id not in held_back
        ]
        txs.sort(key=lambda tx: tx.seq)
        for before, after in pairwise(txs):
            if before.held_nonce() > after.held_nonce():
                what = f"{after.tx_id} has nonce {after.nonce}, and {before.tx_id}, which came first, {before.nonce}"
                yield Violation(UNNUMBERED, what, signer.address)


def history(world: World) -> History:
    recorder, database = world.recorder, world.database
    return History(
        required_depth=world.plan.setup.required,
        terms=tuple(recorder.terms),
        lines=tuple(_lines(world)),
        txs=tuple(_tx_row(world, tx) for tx in database.txs.values()),
        attempts=tuple(row for tx in database.txs.values() for row in _attempt_rows(world, tx)),
        cursors=tuple(
            CursorRow(
                signer.address, cursor.start_nonce, cursor.next_nonce, cursor.state, *_written(world, signer)
            )
            for signer, cursor in database.cursors.items()
        ),
        blocks=tuple(_blocks(world)),
        sent=tuple(recorder.sent),
        acknowledged=tuple(recorder.acknowledged),
        fenced=tuple(recorder.fenced),
        foreign=frozenset(recorder.foreign_hashes()),
        quiet_within_s=world.settled_in_s,
    )


def _lines(world: World) -> Iterator[JournalLine]:
    for number, (row, (xid, at_s)) in enumerate(
        zip(world.database.journal, world.recorder.marks, strict=True), 1
    ):
        yield JournalLine(
            id=number,
            xid=xid,
            signer=row.signer.address,
            event=row.event,
            tx_id=None if row.tx_id is None else str(row.tx_id),
            state=row.state,
            detail=row.detail,
            token=row.token,
            committed_s=at_s,
        )


def _written(world: World, row: object) -> tuple[int | None, int]:
    return world.recorder.written_by.get(row, (None, 0))


def _effect(raw: bytes) -> str:
    call = decode(raw)[1].call
    return effect_of(to=call.to, value_wei=call.value_wei, data="")


def _tx_row(world: World, tx: ManagedTx) -> TxRow:
    call = tx.intent.call
    effect = effect_of(to=call.to, value_wei=call.value_wei, data="")
    if tx.kind is Kind.HANDLER:  # the bytes alone show what the handler built
        built = [attempt for attempt in tx.attempts if attempt.purpose is Purpose.INTENT]
        effect = _effect(built[0].signed.raw) if built else "nothing was built"
    token, xid = _written(world, tx.tx_id)
    return TxRow(
        tx_id=str(tx.tx_id),
        signer=tx.signer.address,
        request_id=tx.request_id,
        state=tx.state,
        effect=effect,
        nonce=tx.nonce,
        tx_hash=tx.hash,
        block_number=None if tx.mined is None else tx.mined.block.number,
        block_hash=None if tx.mined is None else tx.mined.block.hash,
        token=token,
        xid=xid,
    )


def _attempt_rows(world: World, tx: ManagedTx) -> Iterator[AttemptRow]:
    for attempt in tx.attempts:
        token, xid = _written(world, attempt.signed.hash)
        yield AttemptRow(
            tx_id=str(tx.tx_id),
            number=attempt.number,
            signer=tx.signer.address,
            nonce=tx.held_nonce(),
            purpose=attempt.purpose,
            effect=_effect(attempt.signed.raw),
            fee_cap_wei=attempt.fees.fee_cap_wei,
            tip_wei=attempt.fees.tip_wei,
            hash=attempt.signed.hash,
            token=token or 0,
            xid=xid,
        )


def _blocks(world: World) -> Iterator[ChainBlock]:
    # Lost bytes may have been signed again, with the same result.
    effects = world.recorder.lost | {sent.tx.hash: sent.tx.effect for sent in world.recorder.sent}
    for header, txs in world.chain.canonical():
        yield ChainBlock(
            header.number,
            header.hash,
            tuple(
                ChainTx(tx_hash, sender, nonce, effects.get(tx_hash, "a foreign transaction"))
                for tx_hash, sender, nonce in txs
            ),
        )
