"""Kill a node with SIGKILL at every critical point: another node takes over, each request is mined exactly once, no nonce gap."""

from __future__ import annotations

import signal
from itertools import groupby

import pytest

from fixtures.core import Account, Client, DatabaseReader, OwnChain, check_all_mined_once, eventually
from fixtures.nodes import PIPELINED, Failpoint, StartNode, open_fencepost

COUNT = 6
# Window of three: at the node's second send or commit some transactions are mined, some sent, some queued.
OPTIONS = {
    "lease.duration": "1s",
    "lease.renew_interval": "200ms",
    **PIPELINED,
    "nonce.max_in_flight": "3",
}

POINTS = [
    *(Failpoint(at, when) for at in ("sign", "send", "receipts") for when in ("before", "after")),
    *(
        Failpoint(f"commit:{event}", when)
        for event in ("BeginSequence", "AssignNonce", "SendResult", "ReceiveReceipt", "Finish")
        for when in ("before", "after")
    ),
    Failpoint("send", "after", nth=2),
    Failpoint("commit:AssignNonce", "after", nth=2),
]


def named(point: Failpoint) -> str:
    return f"{point.when}-{point.at}-{point.nth}"


IN_STRICT_MODE = [
    Failpoint("commit:AssignNonce", "after"),
    Failpoint("send", "after"),
    Failpoint("commit:ReceiveReceipt", "before"),
    Failpoint("commit:Finish", "before"),
]


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        *(pytest.param("pipelined", point, id=f"pipelined-{named(point)}") for point in POINTS),
        *(pytest.param("strict", point, id=f"strict-{named(point)}") for point in IN_STRICT_MODE),
    ],
)
async def test_each_request_is_mined_once_wherever_a_node_dies(
    dsn: str,
    interval_chain: OwnChain,
    db: DatabaseReader,
    client: Client,
    start_node: StartNode,
    *,
    point: Failpoint,
    mode: str,
) -> None:
    account = interval_chain.accounts[0]
    count = COUNT if mode == "pipelined" else 2
    await client.ask(account, count)
    options = OPTIONS | {"nonce.mode": mode}
    doomed = start_node(interval_chain, account, name="doomed", options=options, failpoints=[point])
    assert await doomed.ended() == -signal.SIGKILL, doomed.said()
    async with open_fencepost(dsn, interval_chain, account, options=options):
        await db.until_states(account, CONFIRMED=count)
    await check_all_mined_once(db, interval_chain, account, count)
    terms = await db.terms(account)
    owners = [name == "doomed" for name, _ in groupby(term["owner_node"] for term in terms)]
    assert owners == [True, False]  # on a busy machine either node may lose its lease and acquire it again


@pytest.mark.parametrize("event", ["BeginSequence", "AssignNonce", "SendResult", "ReceiveReceipt", "Finish"])
async def test_a_commit_with_a_lost_answer_is_read_back_and_not_repeated(
    interval_chain: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode, event: str
) -> None:
    """The same node continues, in a new term."""
    account = interval_chain.accounts[0]
    await client.ask(account, COUNT)
    lost = Failpoint(f"commit:{event}", "after", "lose_answer")
    node = start_node(interval_chain, account, options=OPTIONS, failpoints=[lost])
    await db.until_states(account, CONFIRMED=COUNT)
    await check_all_mined_once(db, interval_chain, account, COUNT)
    assert "struck" in node.said()
    assert len(await db.terms(account)) == 2
    given = await db.connection.fetch("SELECT tx_id FROM journal WHERE event = 'AssignNonce'")
    assert len(given) == len({row["tx_id"] for row in given}) == COUNT


async def test_a_commit_that_never_happened_is_repeated(
    interval_chain: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode
) -> None:
    """The connection breaks between sign and commit: nothing is stored, so the same nonces are allocated again."""
    account = interval_chain.accounts[0]
    await client.ask(account, COUNT)
    broken = Failpoint("commit:AssignNonce", "before", "lose_answer")
    node = start_node(interval_chain, account, options=OPTIONS, failpoints=[broken])
    await db.until_states(account, CONFIRMED=COUNT)
    await check_all_mined_once(db, interval_chain, account, COUNT)
    assert "struck" in node.said()


BUMPING = OPTIONS | {
    "resubmit.interval": "100ms",
    "fees.bump.enabled": "true",
    "fees.bump.after_resubmits": "1",
}


@pytest.mark.parametrize(
    "point",
    [
        Failpoint("commit:Bump", "before"),
        Failpoint("commit:Bump", "after"),
        Failpoint("sign", "after", nth=2),
        Failpoint("commit:Bump", "after", nth=2),
    ],
    ids=named,
)
async def test_a_crash_during_a_fee_bump_leaves_two_attempts_and_one_transaction(
    dsn: str,
    manual_chain: OwnChain,
    db: DatabaseReader,
    client: Client,
    start_node: StartNode,
    *,
    point: Failpoint,
) -> None:
    account = manual_chain.accounts[0]
    ids = await client.ask(account, 2)
    doomed = start_node(manual_chain, account, name="doomed", options=BUMPING, failpoints=[point])
    assert await doomed.ended() == -signal.SIGKILL, doomed.said()
    before = await db.attempts(ids[0])
    async with open_fencepost(dsn, manual_chain, account, options=BUMPING | {"resubmit.interval": "60s"}):
        await _all_in_pool(manual_chain, account, 2)
        await db.until_event(ids[0], "SendResult", times=2)
        await manual_chain.mine(3)
        await db.until_states(account, CONFIRMED=2)
    await check_all_mined_once(db, manual_chain, account, 2)
    after = await db.attempts(ids[0])
    assert [row["tx_hash"] for row in after[: len(before)]] == [row["tx_hash"] for row in before]
    caps = [row["fee_cap_wei"] for row in after]
    assert caps == sorted(set(caps))


async def _all_in_pool(chain: OwnChain, account: Account, count: int) -> None:
    async def are_there() -> bool:
        return await chain.nonce(account.address, "pending") == count

    await eventually(are_there)


async def test_the_last_node_finishes_after_all_others_die_in_turn(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode
) -> None:
    account = interval_chain.accounts[0]
    await client.ask(account, 12)
    for point in (
        Failpoint("send", "after"),
        Failpoint("commit:AssignNonce", "after"),
        Failpoint("commit:SendResult"),
    ):
        doomed = start_node(interval_chain, account, options=OPTIONS, failpoints=[point])
        assert await doomed.ended() == -signal.SIGKILL, doomed.said()
    async with open_fencepost(dsn, interval_chain, account, options=OPTIONS):
        await db.until_states(account, CONFIRMED=12)
    await check_all_mined_once(db, interval_chain, account, 12)
    tokens = [term["fencing_token"] for term in await db.terms(account)]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 4
