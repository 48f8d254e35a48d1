"""Who may do what: keys, scopes, signers, rates, and a row of audit for each thing that people do."""

from __future__ import annotations

from uuid import uuid4

import pytest

from fencepost.api import gate, require_keys
from fencepost.application.api_keys import Scope, mint
from fencepost.errors import SettingError
from fix_anvil import TestChain
from fix_api import Door, open_door
from fix_core import eventually


def test_without_keys_only_a_loopback_address_may_be_served() -> None:
    for host in ("127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"):
        assert require_keys(host, False) is False
        assert require_keys(host, True) is True
    for host in ("0.0.0.0", "10.0.0.1", "::", "node-1.example", "128.0.0.1", "localhost.example"):  # noqa: S104 - it is what must be refused
        assert require_keys(host, True) is True
        with pytest.raises(SettingError, match="API key"):
            require_keys(host, False)


async def test_from_the_first_key_on_every_call_needs_one(door: Door) -> None:
    assert (await door.get("/tx")).status == 200
    token = await door.key(Scope.TX_READ)
    keyed = door.with_token(token)
    assert (await keyed.get("/tx")).status == 200

    async def refused() -> bool:
        return (await door.get("/tx")).status == 401

    await eventually(refused, within_s=20 * gate.REMEMBER_S)  # that there are none is believed for a moment
    missing = await door.get("/tx")
    assert missing.problem[:2] == (401, "key_missing")
    assert missing.headers["WWW-Authenticate"].startswith("Bearer")
    key_id = token.split("_")[1]
    for wrong in (
        "nonsense",
        f"fp_{key_id}_wrong",
        f"fp_{'0' * 16}_{token.split('_', 2)[2]}",
        token[:-1],
        "fp__",
        "é",
    ):
        assert (await door.with_token(wrong).get("/tx")).problem[:2] == (401, "key_invalid"), wrong
    for path in ("//healthz", "//readyz", "//version", "//openapi.json"):
        assert (await door.get(path)).status == 200, path


async def test_only_a_hash_of_a_key_is_stored_and_a_revoked_key_opens_nothing(door: Door) -> None:
    new, token = mint("short-lived", scopes=frozenset({Scope.ADMIN}))
    secret = token.split("_", 2)[2]
    assert len(secret) == 43
    await door.services.keys.add(new, actor="a test")
    row = await door.running.pool.fetchrow("SELECT * FROM api_key")
    assert row is not None
    assert secret not in str(dict(row))
    keyed = door.with_token(token)
    assert (await keyed.get("/tx")).status == 200
    assert await door.services.keys.revoke(new.id, actor="a test")
    assert not await door.services.keys.revoke(new.id, actor="a test")

    async def refused() -> bool:
        return (await keyed.get("/tx")).status != 200

    await eventually(refused, within_s=20 * gate.REMEMBER_S)
    assert (await keyed.get("/tx")).problem[:2] == (401, "key_invalid")
    actions = await door.running.pool.fetch("SELECT action, actor FROM audit ORDER BY id")
    assert [tuple(row) for row in actions] == [("key.create", "a test"), ("key.revoke", "a test")]


async def test_a_scope_allows_what_it_says_and_no_more(door: Door) -> None:
    admin = door.with_token(await door.key(Scope.ADMIN))
    tx = (await admin.post("/tx", door.transfer("scoped"), wait="confirmed", timeout=60)).json
    signer = door.signers[0]
    nowhere = uuid4()
    calls = {
        "read": ("GET", f"/tx/{tx['txId']}"),
        "write": ("POST", "/tx"),
        "batch": ("POST", "/tx/batch"),
        "cancel": ("POST", f"/tx/{nowhere}/cancel"),
        "suspend": ("POST", f"/tx/{nowhere}/suspend"),
        "pause": ("POST", f"/signers/{signer}/pause"),
    }
    allowed = {
        Scope.TX_READ: {"read"},
        Scope.TX_WRITE: {"read", "write", "batch", "cancel"},
        Scope.OPERATOR: {"read", "cancel", "suspend", "pause"},
        Scope.ADMIN: set(calls),
    }
    for scope, may in allowed.items():
        keyed = door.with_token(await door.key(scope))
        for name, (method, path) in calls.items():
            answer = await keyed.send(method, path)
            if name in may:
                assert answer.status not in (401, 403), (scope, name, answer)
            else:
                assert answer.problem[:2] == (403, "scope_missing"), (scope, name, answer)


async def test_a_key_for_some_signers_sees_and_uses_only_those(door: Door) -> None:
    own, other = door.signers[:2]
    admin = door.with_token(await door.key(Scope.ADMIN))
    mine = (await admin.post("/tx", door.transfer("o", signer=own), wait="confirmed", timeout=60)).json
    theirs = (await admin.post("/tx", door.transfer("o", signer=other), wait="confirmed", timeout=60)).json
    keyed = door.with_token(await door.key(Scope.TX_WRITE, Scope.OPERATOR, signers=frozenset({own})))
    assert (await keyed.post("/tx", door.transfer("p", signer=own))).status == 202
    assert (await keyed.post("/tx", door.transfer("p", signer=other))).problem[:2] == (
        403,
        "signer_forbidden",
    )
    assert (await keyed.get(f"/tx/{mine['txId']}")).status == 200
    assert (await keyed.get(f"/tx/{theirs['txId']}")).problem[:2] == (404, "tx_not_found")
    assert (await keyed.get(f"/tx/by-hash/{theirs['hash']}")).problem[:2] == (404, "tx_not_found")
    assert (await keyed.post(f"/tx/{theirs['txId']}/cancel")).problem[:2] == (404, "tx_not_found")
    assert (await keyed.post(f"/signers/{other}/pause")).problem[:2] == (404, "signer_not_found")
    assert {item["signer"] for item in (await keyed.get("/tx")).json["items"]} == {own}
    await admin.completions(2)
    assert {item["signer"] for item in await keyed.completions(1)} == {own}
    assert (await keyed.get("/tx", signer=other)).json["items"] == []
    assert [item["address"] for item in (await keyed.get("/signers")).json["items"]] == [own]


async def test_a_key_has_its_rate_and_a_batch_counts_as_many(door: Door) -> None:
    slow = door.with_token(await door.key(Scope.TX_READ, rate_per_s=0.5))
    assert (await slow.get("/tx")).status == 200
    limited = await slow.get("/tx")
    assert limited.problem[:2] == (429, "rate_limited")
    assert 1 <= int(limited.headers["Retry-After"]) <= 2
    writer = door.with_token(await door.key(Scope.TX_WRITE, rate_per_s=20))
    batch = {"requests": [door.transfer(f"r-{number}") for number in range(60)]}
    assert (await writer.post("/tx/batch", batch)).status == 200
    in_debt = await writer.get("/tx")
    assert in_debt.problem[:2] == (429, "rate_limited")
    assert int(in_debt.headers["Retry-After"]) >= 2
    assert (await door.with_token(await door.key(Scope.TX_READ)).get("/tx")).status == 200


async def test_what_people_do_is_written_down_with_who_and_why(dsn: str, anvil: TestChain) -> None:
    async with open_door(dsn, anvil) as door:
        token = await door.key(Scope.OPERATOR, name="night shift")
        keyed, signer = door.with_token(token), door.signers[0]
        body = {"reason": "planned work", "by": "Ada"}
        answer = await keyed.post(f"/signers/{signer}/pause", body, timeout=60)
        assert answer.json["askedBy"] == "Ada (night shift)"
        row = await door.running.pool.fetchrow("SELECT * FROM audit WHERE action = 'signer.pause'")
        assert row is not None
        assert (row["actor"], row["key_id"], row["signer"]) == (
            "Ada (night shift)",
            token.split("_")[1],
            signer,
        )
        assert (row["reason"], str(row["command_id"])) == ("planned work", answer.json["commandId"])
        assert row["node"] == door.running.node.name
