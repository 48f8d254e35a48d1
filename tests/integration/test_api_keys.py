"""API keys: scopes, signers, rates, and an audit row for each operator action."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from fencepost.api import auth, require_keys
from fencepost.application.api_keys import RevokeOutcome, Scope, mint
from fencepost.errors import SettingError
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from fixtures.core import eventually


def test_without_keys_only_a_loopback_address_is_served() -> None:
    for host in ("127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"):
        assert require_keys(host, auth="open", keys_exist=False) is False
        assert require_keys(host, auth="open", keys_exist=True) is True
        assert require_keys(host, auth="required", keys_exist=False) is True
    for host in ("0.0.0.0", "10.0.0.1", "::", "node-1.example", "128.0.0.1", "localhost.example"):  # noqa: S104 - it is what must be refused
        assert require_keys(host, auth="open", keys_exist=True) is True
        assert require_keys(host, auth="required", keys_exist=False) is True
        with pytest.raises(SettingError, match="API key"):
            require_keys(host, auth="open", keys_exist=False)


async def test_every_call_needs_a_key_once_the_first_key_exists(api: ApiServer) -> None:
    assert (await api.get("/tx")).status == 200
    token = await api.key(Scope.TX_READ)
    keyed = api.with_token(token)
    assert (await keyed.get("/tx")).status == 200

    async def refused() -> bool:
        return (await api.get("/tx")).status == 401

    await eventually(refused, within_s=20 * auth.KEY_CACHE_S)  # the absence of keys is cached for a moment
    missing = await api.get("/tx")
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
        assert (await api.with_token(wrong).get("/tx")).problem[:2] == (401, "key_invalid"), wrong
    for path in ("//healthz", "//readyz", "//version", "//openapi.json"):
        assert (await api.get(path)).status == 200, path


async def test_only_the_hash_of_a_key_is_stored_and_a_revoked_key_is_rejected(api: ApiServer) -> None:
    new, token = mint("short-lived", scopes=frozenset({Scope.ADMIN}))
    secret = token.split("_", 2)[2]
    assert len(secret) == 43
    await api.services.keys.add(new, actor="a test")
    row = await api.running.pool.fetchrow("SELECT * FROM api_key")
    assert row is not None
    assert secret not in str(dict(row))
    keyed = api.with_token(token)
    assert (await keyed.get("/tx")).status == 200
    assert await api.services.keys.revoke(new.id, actor="a test", force=True) == "revoked"
    assert await api.services.keys.revoke(new.id, actor="a test", force=True) == "unknown"

    async def refused() -> bool:
        return (await keyed.get("/tx")).status != 200

    await eventually(refused, within_s=20 * auth.KEY_CACHE_S)
    assert (await keyed.get("/tx")).problem[:2] == (401, "key_invalid")
    actions = await api.running.pool.fetch("SELECT action, actor FROM audit ORDER BY id")
    assert [tuple(row) for row in actions] == [("key.create", "a test"), ("key.revoke", "a test")]


async def test_a_node_still_requires_keys_after_its_last_key_is_revoked(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        assert (await api.get("/tx")).status == 200  # no keys required: none was ever created
        new, _ = mint("only one", scopes=frozenset({Scope.TX_READ}))
        await api.services.keys.add(new, actor="a test")

        async def closed() -> bool:
            return (await api.get("/tx")).status == 401

        await eventually(closed, within_s=20 * auth.KEY_CACHE_S)
        assert await api.services.keys.revoke(new.id, actor="a test") == "revoked"
        await asyncio.sleep(1.5 * auth.KEY_CACHE_S)  # the cache from before the revocation has expired
        assert (await api.get("/tx")).problem[:2] == (401, "key_missing")
    async with open_api(dsn, anvil) as api:  # a new process reads it from the database
        assert (await api.get("/tx")).problem[:2] == (401, "key_missing")


async def test_with_auth_required_the_first_call_needs_a_key(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, api__auth="required") as api:
        assert (await api.get("/tx")).problem[:2] == (401, "key_missing")
        assert (await api.post("//rpc", {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"})).status == 401
        assert (await api.get("//healthz")).status == 200
        assert (await api.with_token(await api.key(Scope.TX_READ)).get("/tx")).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded",
        "X-Forwarded-For",
        "x-forwarded-anything",
        "X-Forwarded",
        "X_Forwarded_For",
        "X-Real-IP",
        "Via",
        "CF-Connecting-IP",
        "X-Original-Forwarded-For",
    ],
)
async def test_a_node_without_keys_rejects_proxied_requests(api: ApiServer, header: str) -> None:
    came = {header: "203.0.113.7"}
    refused = await api.send("GET", "/tx", headers=came)
    assert refused.problem[:2] == (403, "proxy_refused")
    assert header.lower() in refused.json["detail"]
    assert "fencepost keys create" in refused.json["hint"]
    posted = await api.post("/tx", api.transfer("proxied"), headers=came)
    assert posted.problem[:2] == (403, "proxy_refused")
    keyed = api.with_token(await api.key(Scope.TX_READ))
    assert (await keyed.send("GET", "/tx", headers=came)).status == 200


async def test_the_last_admin_key_is_revoked_only_by_force(api: ApiServer) -> None:
    keys = api.services.keys
    full = [mint(f"admin {number}", scopes=frozenset({Scope.ADMIN}))[0] for number in range(2)]
    narrow = mint("narrow", scopes=frozenset({Scope.ADMIN}), signers=frozenset({api.signers[0]}))[0]
    reads = mint("reads", scopes=frozenset({Scope.TX_READ}))[0]
    for key in (*full, narrow, reads):
        await keys.add(key, actor="a test")
    outcomes = await asyncio.gather(*(keys.revoke(key.id, actor="a test") for key in full))
    assert sorted(outcomes) == ["last_admin", "revoked"]
    left = full[outcomes.index(RevokeOutcome.LAST_ADMIN)]
    assert await keys.revoke(narrow.id, actor="a test") == "revoked"
    assert await keys.revoke(reads.id, actor="a test") == "revoked"
    assert await keys.revoke(left.id, actor="a test") == "last_admin"
    assert await keys.revoke(left.id, actor="a test", force=True) == "revoked"
    assert await keys.revoke("0" * 16, actor="a test") == "unknown"


async def test_a_scope_allows_only_its_own_operations(api: ApiServer) -> None:
    admin = api.with_token(await api.key(Scope.ADMIN))
    tx = (await admin.post("/tx", api.transfer("scoped"), wait="confirmed", timeout=60)).json
    signer = api.signers[0]
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
        keyed = api.with_token(await api.key(scope))
        for name, (method, path) in calls.items():
            answer = await keyed.send(method, path)
            if name in may:
                assert answer.status not in (401, 403), (scope, name, answer)
            else:
                assert answer.problem[:2] == (403, "scope_missing"), (scope, name, answer)


async def test_a_key_for_some_signers_sees_and_uses_only_those(api: ApiServer) -> None:
    own, other = api.signers[:2]
    admin = api.with_token(await api.key(Scope.ADMIN))
    mine = (await admin.post("/tx", api.transfer("o", signer=own), wait="confirmed", timeout=60)).json
    theirs = (await admin.post("/tx", api.transfer("o", signer=other), wait="confirmed", timeout=60)).json
    keyed = api.with_token(await api.key(Scope.TX_WRITE, Scope.OPERATOR, signers=frozenset({own})))
    assert (await keyed.post("/tx", api.transfer("p", signer=own))).status == 202
    assert (await keyed.post("/tx", api.transfer("p", signer=other))).problem[:2] == (
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


async def test_a_key_has_a_rate_limit_and_a_batch_counts_per_item(api: ApiServer) -> None:
    slow = api.with_token(await api.key(Scope.TX_READ, rate_per_s=0.5))
    assert (await slow.get("/tx")).status == 200
    limited = await slow.get("/tx")
    assert limited.problem[:2] == (429, "rate_limited")
    assert 1 <= int(limited.headers["Retry-After"]) <= 2
    writer = api.with_token(await api.key(Scope.TX_WRITE, rate_per_s=20))
    batch = {"requests": [api.transfer(f"r-{number}") for number in range(60)]}
    assert (await writer.post("/tx/batch", batch)).status == 200
    in_debt = await writer.get("/tx")
    assert in_debt.problem[:2] == (429, "rate_limited")
    assert int(in_debt.headers["Retry-After"]) >= 2
    assert (await api.with_token(await api.key(Scope.TX_READ)).get("/tx")).status == 200


async def test_operator_actions_are_recorded_with_author_and_reason(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        token = await api.key(Scope.OPERATOR, name="night shift")
        keyed, signer = api.with_token(token), api.signers[0]
        body = {"reason": "planned work", "by": "Ada"}
        answer = await keyed.post(f"/signers/{signer}/pause", body, timeout=60)
        assert answer.json["askedBy"] == "Ada (night shift)"
        row = await api.running.pool.fetchrow("SELECT * FROM audit WHERE action = 'signer.pause'")
        assert row is not None
        assert (row["actor"], row["key_id"], row["signer"]) == (
            "Ada (night shift)",
            token.split("_")[1],
            signer,
        )
        assert (row["reason"], str(row["command_id"])) == ("planned work", answer.json["commandId"])
        assert row["node"] == api.running.node.name
