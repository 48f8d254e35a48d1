"""Whatever a text holds, the fenced write stores it as it is: columns travel joined, quoted and listed, and none may leak."""

from __future__ import annotations

from functools import partial

import pytest

from fakes.ledger_lab import ALICE, LedgerLab
from fakes.ledger_steps import ACCEPTED, APPLIED, block, change, held, stored, take
from fencepost.application.ports import Cursor, LaneWrite
from fencepost.domain import managed
from fencepost.domain.managed import Receipt
from fencepost.domain.states import CursorState

NASTY = [
    "",
    " ",
    "NULL",
    "null",
    "{}",
    '{"a",NULL}',
    'a "quoted" word',
    "back\\slash",
    "\\x00ff",
    "a,b;c'd''e",
    "line\nline\r\ttab",
    "unit\x1fseparator, \x1e, \x7f and \x01",
    "ключ 鍵 🔑 é",
    "$1 %s {0} -- /* */",
]


@pytest.mark.parametrize("text", NASTY)
async def test_texts_come_back_as_they_were(lab: LedgerLab, text: str) -> None:
    ledger = await lab.node("a")
    # Between two plain ones, so that a text that is cut in two would move what belongs to its neighbours.
    term, queue = await held(ledger, "x", "y", "z")
    protect = Cursor(3, 0, CursorState.PROTECT, text)
    changes = tuple(take(tx, nonce) for nonce, tx in enumerate(queue))
    assert await ledger.commit(LaneWrite(term, changes, cursor_after=protect)) == APPLIED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == protect
    at = block(9)
    ends = []
    for tx, said in zip((c.after for c in changes), ("plain", text, "plain"), strict=True):
        raw = {"status": "0x1", "gasUsed": "0x5208", "logs": [], said: {"deep": [said, None]}}
        mined = Receipt(tx.latest.signed.hash, at, succeeded=True, gas_used=21_000, raw=raw)
        sent = ACCEPTED.changed(message=said)
        ends.append(
            change(
                tx.changed(version=2),
                partial(managed.sent, attempt_number=1, result=sent, now_s=lab.clock.now_s(), due_s=None),
                partial(managed.stuck, reason=said),
                partial(managed.mined, receipt=mined),
            )
        )
    assert await ledger.commit(LaneWrite(term, tuple(ends))) == APPLIED
    for end in ends:
        found = await stored(ledger, end.after)
        assert found.mined == end.after.mined
        assert (found.error or "") == (end.after.error or "")
        assert found.attempts == end.after.attempts
        assert found.hash == end.after.hash


async def test_one_row_without_a_receipt_between_two_with_one(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, queue = await held(ledger, "x", "y", "z")
    changes = tuple(take(tx, nonce) for nonce, tx in enumerate(queue))
    assert await ledger.commit(LaneWrite(term, changes, cursor_after=Cursor(3, 0))) == APPLIED
    x, y, z = (c.after.changed(version=2) for c in changes)
    receipts = [
        Receipt(tx.latest.signed.hash, block(4), True, 21_000, {"status": "0x1", "gasUsed": "0x5208"})
        for tx in (x, z)
    ]
    first = change(x, partial(managed.mined, receipt=receipts[0]))
    other = change(y, partial(managed.suspended, by="eve"))
    last = change(z, partial(managed.mined, receipt=receipts[1]))
    assert await ledger.commit(LaneWrite(term, (first, other, last))) == APPLIED
    assert [(await stored(ledger, tx)).mined for tx in (x, y, z)] == [receipts[0], None, receipts[1]]
