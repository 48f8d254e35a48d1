"""The benchmark's yardstick does what it is compared for: everything is stored, mined once, and stored with its receipt."""

from __future__ import annotations

import asyncpg
import pytest

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.errors import Unready
from fencepost.lab.bench import bare_pipeline
from fencepost.lab.bench.blasting import Receipts
from fencepost.lab.bench.end_to_end import CHAIN_ID, bare_process, fund
from fencepost.lab.bench.load import batch_bodies
from fencepost.lab.bench.signers import Signers
from fix_core import OwnChain

COUNT, SIGNERS = 600, 3


async def test_every_request_is_mined_once_and_its_receipt_is_stored(dsn: str, ticking: OwnChain) -> None:
    signers = Signers.fresh(SIGNERS)
    await fund(ticking.rpc_url, signers)
    bodies = [body.decode() for body in batch_bodies(signers, COUNT, "e")]
    order = bare_pipeline.Order(dsn, ticking.rpc_url, CHAIN_ID, list(signers.keys), bodies)
    async with bare_process(order) as (_, go):
        await go()

    connection = await asyncpg.connect(dsn)
    try:
        stored = await connection.fetch(
            "SELECT signer, nonce, hash, receipt ->> 'transactionHash' AS received,"
            " receipt ->> 'status' AS status FROM bare ORDER BY signer, nonce"
        )
    finally:
        await connection.close()
    assert [(row["signer"], row["nonce"]) for row in stored] == [
        (signer, nonce) for signer in sorted(signers.addresses) for nonce in range(COUNT // SIGNERS)
    ]
    assert all(row["hash"] == row["received"] and row["status"] == "0x1" for row in stored)
    mined = [tx["hash"] for tx in await ticking.all_mined()]
    assert sorted(mined) == sorted(row["hash"] for row in stored)


async def test_what_no_block_contains_is_not_waited_for_without_end(ticking: OwnChain) -> None:
    rpc = JsonRpc(ticking.rpc_url)
    try:
        with pytest.raises(ExceptionGroup) as failed:
            await Receipts(rpc, 1, stalled_s=0.5).fetch()
    finally:
        await rpc.close()
    (reason,) = failed.value.exceptions
    assert isinstance(reason, Unready)
    assert "1 of 1 transactions came into no block" in str(reason)
