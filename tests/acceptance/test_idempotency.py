"""A request is carried out once, however often and through whichever node it is submitted."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from fencepost.application.ports import AcceptOutcome, NewRequest
from fencepost.domain.ids import Signer
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent, Kind
from fencepost.errors import RequestConflict
from fixtures.core import SINK, DatabaseReader, OwnChain, check_all_mined_once, open_ledger
from fixtures.nodes import open_fencepost


async def test_one_request_submitted_a_hundred_times_through_two_nodes_is_one_transaction(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
    async with (
        open_fencepost(dsn, interval_chain, account) as first,
        open_fencepost(dsn, interval_chain, account) as second,
    ):
        ids = await asyncio.gather(
            *(
                node.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
                for _ in range(50)
                for node in (first, second)
            )
        )
        assert len(set(ids)) == 1
        done = await first.wait_for(ids[0], "confirmed")
    assert done is not None
    assert done.state == "CONFIRMED"
    await check_all_mined_once(db, interval_chain, account, 1)


async def test_another_payload_under_a_known_request_id_is_a_conflict_and_changes_nothing(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account) as fencepost:
        tx_id = await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
        await fencepost.wait_for(tx_id, "confirmed")
        before = [dict(row) for row in await db.rows(account)]
        events = await db.events(tx_id)
        for value_wei in (2, 3):
            with pytest.raises(RequestConflict, match=str(tx_id)):
                await fencepost.create(
                    signer=account.address, request_id="order-1", to=SINK, value_wei=value_wei
                )
        assert (
            await fencepost.create(signer=account.address, request_id="order-1", to=SINK, value_wei=1)
            == tx_id
        )
    assert [dict(row) for row in await db.rows(account)] == before
    assert await db.events(tx_id) == events
    await check_all_mined_once(db, interval_chain, account, 1)


async def test_two_nodes_accept_the_same_requests_in_opposite_order(dsn: str, db: DatabaseReader) -> None:
    """Two statements that insert the same keys in different orders could deadlock."""
    signer = Signer(31337, SINK)
    names = [f"order-{i}" for i in range(400)]

    def asked(order: list[str]) -> list[NewRequest]:
        return [
            NewRequest(
                tx_id=uuid4(),
                signer=signer,
                request_id=name,
                kind=Kind.INTENT,
                intent=Intent(call=Call(to=SINK, value_wei=1, data=name.encode())),
            )
            for name in order
        ]

    async with open_ledger(dsn, node="one") as one, open_ledger(dsn, node="two") as two:
        for turn in range(4):
            answers = await asyncio.gather(one.accept(asked(names)), two.accept(asked(names[::-1])))
            by_name = [
                dict(zip(order, said, strict=True))
                for order, said in zip((names, names[::-1]), answers, strict=True)
            ]
            for name in names:
                here, there = by_name[0][name], by_name[1][name]
                assert here.tx_id == there.tx_id
                assert {here.outcome, there.outcome} == {AcceptOutcome.CREATED, AcceptOutcome.KNOWN}, turn
            await db.connection.execute("TRUNCATE managed_tx")
