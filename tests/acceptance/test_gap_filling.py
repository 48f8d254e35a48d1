"""An operator finds a nonce gap and fills it through the API."""

from __future__ import annotations

from fixtures.api import open_api
from fixtures.core import DatabaseReader, OwnChain, check_all_mined_once


async def test_a_nonce_gap_is_filled_and_everything_above_it_is_mined(
    dsn: str, instant_chain: OwnChain, db: DatabaseReader
) -> None:
    account = instant_chain.accounts[0]
    async with open_api(dsn, instant_chain, keys=1, nonce__mode="pipelined") as api:
        await db.connection.execute(
            "INSERT INTO signer_nonce_cursor (chain_id, signer, next_nonce, start_nonce, fencing_token)"
            # A token of this database history: with another one the lane allocates nothing until the chain reaches the cursor.
            " VALUES ($1, $2, 3, 3,"
            " ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint << 40)",
            instant_chain.chain_id,
            account.address,
        )
        for request_id in ("a", "b"):
            waits = await api.post("/tx", api.transfer(request_id), wait="submitted", timeout=60)
            assert waits.json["state"] == "SUBMITTED"
        assert await instant_chain.mined_from(account.address) == []
        path = f"/signers/{account.address}"
        protected = await api.post(f"{path}/protect", {"reason": "nothing is mined"}, timeout=60)
        assert protected.status == 200
        command = {"decision": "fill", "reason": "the cursor was too high", "by": "Ada"}
        filled = await api.post(f"{path}/unprotect", command, timeout=60)
        assert (filled.status, filled.json["signer"]["state"]) == (200, "ACTIVE")
        assert filled.json["outcome"] == "active, fill: fillers take 3 nonces, 0 to 2"
        await db.until_states(account, CONFIRMED=5)
        listed = await api.get("/tx", signer=account.address)
        assert len(listed.json["items"]) == 5
    await check_all_mined_once(db, instant_chain, account, 5)
