"""A hole in the sequence, found by a person and filled through the API."""

from __future__ import annotations

from fix_api import open_door
from fix_core import Book, OwnChain, check_all_mined_once


async def test_a_hole_is_filled_and_everything_above_it_is_mined(
    dsn: str, at_once: OwnChain, book: Book
) -> None:
    account = at_once.accounts[0]
    async with open_door(dsn, at_once, keys=1, nonce__mode="pipelined") as door:
        await book.connection.execute(
            "INSERT INTO signer_nonce_cursor (chain_id, signer, next_nonce, start_nonce, fencing_token)"
            # A token of this history of the database: of another one, no nonce would be given before the chain is there.
            " VALUES ($1, $2, 3, 3,"
            " ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint << 40)",
            at_once.chain_id,
            account.address,
        )
        for request_id in ("a", "b"):
            waits = await door.post("/tx", door.transfer(request_id), wait="submitted", timeout=60)
            assert waits.json["state"] == "SUBMITTED"
        assert await at_once.mined_from(account.address) == []
        path = f"/signers/{account.address}"
        protected = await door.post(f"{path}/protect", {"reason": "nothing is mined"}, timeout=60)
        assert protected.status == 200
        wish = {"decision": "fill", "reason": "the cursor was too high", "by": "Ada"}
        filled = await door.post(f"{path}/unprotect", wish, timeout=60)
        assert (filled.status, filled.json["signer"]["state"]) == (200, "ACTIVE")
        assert filled.json["outcome"] == "active, fill: fillers take 3 nonces, 0 to 2"
        await book.until_states(account, CONFIRMED=5)
        listed = await door.get("/tx", signer=account.address)
        assert len(listed.json["items"]) == 5
    await check_all_mined_once(book, at_once, account, 5)
