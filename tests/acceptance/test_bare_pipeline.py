"""Check that the bare pipeline, the benchmark's baseline, stores every request, has it mined once and stores its receipt."""

from __future__ import annotations

import asyncpg
import pytest

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.errors import Unready
from fixtures.core import OwnChain
from lab.bench import bare_pipeline
from lab.bench.bare_sender import Receipts
from lab.bench.end_to_end import CHAIN_ID, bare_process, fund
from lab.bench.load import batch_bodies
from lab.bench.signers import Signers

COUNT, SIGNERS = 600, 3


async def test_every_request_is_mined_once_and_its_receipt_is_stored(
    dsn: str, interval_chain: OwnChain
) -> None:
    signers = Signers.fresh(SIGNERS)
    await fund(interval_chain.rpc_url, signers)
    bodies = [body.decode() for body in batch_bodies(signers, COUNT, "e")]
    order = bare_pipeline.Order(dsn, interval_chain.rpc_url, CHAIN_ID, list(signers.keys), bodies)
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
    mined = [tx["hash"] for tx in await interval_chain.all_mined()]
    assert sorted(mined) == sorted(row["hash"] for row in stored)


async def test_the_wait_for_a_transaction_in_no_block_is_bounded(interval_chain: OwnChain) -> None:
    rpc = JsonRpc(interval_chain.rpc_url)
    try:
        with pytest.raises(ExceptionGroup) as failed:
            await Receipts(rpc, 1, stalled_s=0.5).fetch()
    finally:
        await rpc.close()
    (reason,) = failed.value.exceptions
    assert isinstance(reason, Unready)
    assert "1 of 1 transactions came into no block" in str(reason)
