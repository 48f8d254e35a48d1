"""Webhooks of a real node to a real receiver: signatures, filters, rotation, retries, replay, and what a key may see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from standardwebhooks.webhooks import Webhook

from fencepost.application.api_keys import Scope
from fencepost.client import AsyncClient, Client, verify_webhook
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from fixtures.client import run_fencepost
from fixtures.core import eventually
from fixtures.receiver import Received, Receiver, open_receiver

QUICK: dict[str, Any] = {
    "events__webhook__allow_private": "true",
    "events__webhook__retry_delays": "0s,50ms,50ms,50ms,50ms,50ms,50ms,50ms",
    "lease__renew_interval": "200ms",
}


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as opened:
        yield opened


@asynccontextmanager
async def open_quick(dsn: str, anvil: TestChain, **options: str) -> AsyncIterator[ApiServer]:
    async with open_api(dsn, anvil, **{**QUICK, **options}) as opened:
        yield opened


@pytest_asyncio.fixture
async def hooked(dsn: str, anvil: TestChain) -> AsyncIterator[ApiServer]:
    async with open_quick(dsn, anvil) as opened:
        yield opened


async def subscribe(api: ApiServer, url: str | None, **more: Any) -> dict[str, Any]:
    answer = await api.post("/subscriptions", {"type": "webhook", "url": url, "start": "beginning"} | more)
    assert answer.status == 201, answer
    made: dict[str, Any] = answer.json
    return made


async def finished(api: ApiServer, request_id: str, **more: Any) -> None:
    answer = await api.post("/tx", api.transfer(request_id, **more), wait="finished", timeout=60)
    assert answer.status == 200, answer


async def arrived(receiver: Receiver, kind: str, count: int = 1) -> None:
    async def came() -> bool:
        return receiver.types.count(kind) >= count

    await eventually(came)


async def test_a_transaction_reaches_the_receiver_signed(hooked: ApiServer, receiver: Receiver) -> None:
    made = await subscribe(hooked, receiver.url)
    await finished(hooked, "hooked")
    await arrived(receiver, "tx.confirmed")
    assert set(receiver.types) >= {"tx.queued", "tx.allocated", "tx.submitted", "tx.mined", "tx.confirmed"}
    for one in receiver.received:
        event = verify_webhook(one.body, one.headers, made["secret"])
        assert Webhook(made["secret"]).verify(one.body, one.headers)["id"] == event.id
        assert event.id == one.headers["webhook-id"]
    last = next(one.event for one in receiver.received if one.event["type"] == "tx.confirmed")
    assert last["data"]["tx"]["requestId"] == "hooked"
    assert "nonce" not in str(last)
    listed = (await hooked.get(f"/subscriptions/{made['id']}/attempts")).json["items"]
    assert {(one["status"], one["error"], one["answer"]) for one in listed} == {(200, None, "thanks")}
    shown = (await hooked.get(f"/subscriptions/{made['id']}")).json
    assert "secret" not in shown
    assert (shown["state"], shown["pending"]) == ("active", 0)


async def test_filters_select_what_is_sent(hooked: ApiServer, receiver: Receiver) -> None:
    await subscribe(
        hooked,
        receiver.url,
        filter={"types": ["tx.confirmed"], "tags": ["gold"], "signers": [hooked.signers[0]]},
    )
    await finished(hooked, "plain")
    await finished(hooked, "other", signer=hooked.signers[1], tags=["gold"])
    await finished(hooked, "gold", tags=["gold"])
    await arrived(receiver, "tx.confirmed")
    assert [one.event["data"]["tx"]["requestId"] for one in receiver.received] == ["gold"]


async def test_a_key_owns_its_subscriptions_and_sees_its_signers_only(
    hooked: ApiServer, receiver: Receiver
) -> None:
    admin = hooked.with_token(await hooked.key(Scope.ADMIN, name="admin"))
    own = hooked.with_token(
        await hooked.key(Scope.TX_READ, name="own", signers=frozenset({hooked.signers[1]}))
    )
    other = hooked.with_token(await hooked.key(Scope.TX_READ, name="other"))
    made = await subscribe(own, receiver.url)
    path = f"/subscriptions/{made['id']}"
    assert (await other.get(path)).problem[:2] == (404, "subscription_not_found")
    assert (await other.send("DELETE", path)).problem[:2] == (404, "subscription_not_found")
    assert (await other.get("/subscriptions")).json["items"] == []
    assert [one["id"] for one in (await own.get("/subscriptions")).json["items"]] == [made["id"]]
    assert (await admin.get(path)).status == 200
    refused = await own.post(
        "/subscriptions", {"type": "webhook", "url": receiver.url, "filter": {"signers": [hooked.signers[0]]}}
    )
    assert refused.problem[:2] == (403, "signer_forbidden")
    await finished(admin, "hidden")
    await finished(admin, "seen", signer=hooked.signers[1])
    await arrived(receiver, "tx.confirmed")
    assert {one.event["signer"] for one in receiver.received} == {hooked.signers[1]}


async def test_a_failing_receiver_gets_the_event_again_and_then_a_replay(
    hooked: ApiServer, receiver: Receiver
) -> None:
    async def fail(_received: Received) -> web.StreamResponse:
        return web.Response(status=503, text="x" * 5_000)

    receiver.answer = fail
    made = await subscribe(hooked, receiver.url, filter={"types": ["tx.confirmed"]})
    path = f"/subscriptions/{made['id']}"
    await finished(hooked, "late")
    await arrived(receiver, "tx.confirmed", 8)
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 1

    async def given_up() -> bool:
        shown = (await hooked.get(path)).json
        return bool(shown["pending"] == 0 and shown["failingSince"])

    await eventually(given_up)
    failed = (await hooked.get(f"{path}/attempts", failed="true")).json["items"]
    assert sorted(one["attempt"] for one in failed) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {(one["status"], len(one["answer"])) for one in failed} == {(503, 1024)}
    receiver.answer = Receiver().answer
    since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert (await hooked.post(f"{path}/replay", {"failedSince": since})).json["queued"] == 1
    await arrived(receiver, "tx.confirmed", 9)
    event_id = receiver.received[0].headers["webhook-id"]
    assert (await hooked.post(f"{path}/replay", {"event": event_id})).json == {"queued": 1, "next": None}
    await arrived(receiver, "tx.confirmed", 10)
    assert (await hooked.post(f"{path}/replay", {"until": event_id})).json["queued"] == 1
    await arrived(receiver, "tx.confirmed", 11)
    unknown = await hooked.post(f"{path}/replay", {"event": "evt_" + "0" * 44 + "1"})
    assert unknown.problem[:2] == (404, "event_not_found")
    assert (await hooked.post(f"{path}/replay", {})).problem[:2] == (400, "field_invalid")


async def test_both_secrets_sign_after_a_rotation(hooked: ApiServer, receiver: Receiver) -> None:
    made = await subscribe(hooked, receiver.url, start="now")
    path = f"/subscriptions/{made['id']}"
    rotated = (await hooked.post(f"{path}/rotate-secret")).json["secret"]
    assert rotated != made["secret"]
    tested = (await hooked.post(f"{path}/test")).json
    assert (tested["status"], tested["error"]) == (200, None)
    (one,) = [one for one in receiver.received if one.event["type"] == "webhook.test"]
    for secret in (rotated, made["secret"]):
        assert verify_webhook(one.body, one.headers, secret).type == "webhook.test"


async def test_a_paused_subscription_gets_its_events_later(hooked: ApiServer, receiver: Receiver) -> None:
    made = await subscribe(hooked, receiver.url, filter={"types": ["tx.confirmed"]})
    path = f"/subscriptions/{made['id']}"
    assert (await hooked.post(f"{path}/pause")).json["state"] == "paused"
    await finished(hooked, "while-paused")
    assert (await hooked.post(f"{path}/resume")).json["state"] == "active"
    await arrived(receiver, "tx.confirmed")
    assert (await hooked.send("DELETE", path)).json == {"id": made["id"], "deleted": True}
    assert (await hooked.get(path)).problem[:2] == (404, "subscription_not_found")


async def test_gone_disables_and_is_an_event(
    hooked: ApiServer, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(_received: Received) -> web.StreamResponse:
        return web.Response(status=410)

    receiver.answer = gone
    made = await subscribe(hooked, receiver.url, filter={"types": ["tx.confirmed"]})
    await finished(hooked, "gone")

    async def disabled() -> bool:
        return bool((await hooked.get(f"/subscriptions/{made['id']}")).json["state"] == "disabled")

    await eventually(disabled)

    async def is_reported() -> bool:
        page = (await hooked.get("/events", types="webhook.disabled")).json["items"]
        return [one["data"]["subscription"] for one in page] == [made["id"]]

    await eventually(is_reported)
    assert f"disabled the webhook subscription {made['id']}" in caplog.text
    assert made["secret"] not in caplog.text


async def test_a_redirect_is_a_failure_and_is_not_followed(hooked: ApiServer, receiver: Receiver) -> None:
    async def redirect(_received: Received) -> web.StreamResponse:
        return web.Response(status=307, headers={"location": receiver.url.replace("hook", "other")})

    receiver.answer = redirect
    made = await subscribe(hooked, receiver.url, start="now")
    tested = (await hooked.post(f"/subscriptions/{made['id']}/test")).json
    assert (tested["status"], tested["error"]) == (307, "the endpoint answered 307")
    assert {one.path for one in receiver.received} == {"/hook"}


async def test_a_key_has_a_bounded_number_of_subscriptions(
    dsn: str, anvil: TestChain, receiver: Receiver
) -> None:
    async with open_quick(dsn, anvil, events__max_subscriptions_per_key="2") as api:
        for _ in range(2):
            await subscribe(api, receiver.url)
        third = await api.post("/subscriptions", {"type": "webhook", "url": receiver.url})
        assert third.problem[:2] == (409, "too_many_subscriptions")


@pytest.mark.parametrize(
    "url",
    [
        None,
        "http://example.com/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://localhost/x",
        "https://10.1.2.3/",
        "https://169.254.169.254/latest",
        "https://[::ffff:10.0.0.1]/",
        "https://user:pass@example.com/",
        "https://example.com/#x",
        "ftp://example.com/",
        "https://exa mple.com/",
        "https://",
        "https://h:99999/",
    ],
)
async def test_urls_that_lead_inside_are_rejected(api: ApiServer, url: str | None) -> None:
    answer = await api.post("/subscriptions", {"type": "webhook", "url": url})
    assert answer.problem[0] == 400
    assert answer.problem[2] == "url"


async def test_both_clients_and_the_command_line_manage_subscriptions(
    hooked: ApiServer, receiver: Receiver
) -> None:
    async with AsyncClient(hooked.url) as client:
        made = await client.create_subscription(receiver.url, types=["tx.confirmed"], ordered="signer")
        assert made.secret
        assert [one.id for one in await client.subscriptions()] == [made.id]
        assert (await client.test_subscription(made.id)).status == 200
        assert (await client.attempts(made.id))[0].answer == "thanks"
        assert (await client.pause_subscription(made.id)).state == "paused"
    env = {"FENCEPOST_URL": hooked.url}
    status, out, errors = await run_fencepost(
        "subscription", "create", receiver.url, "--event=tx.failed", env=env
    )
    assert (status, errors) == (0, "")
    created = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert created["secret"].startswith("whsec_")
    for words, expected in [
        (("subscription", "list"), made.id),
        (("subscription", "test", created["id"]), "accepted with 200"),
        (("subscription", "show", created["id"]), "tx.failed"),
        (("subscription", "pause", created["id"]), "paused"),
        (("subscription", "resume", created["id"], "--start=beginning"), "active"),
        (("subscription", "rotate-secret", created["id"]), "whsec_"),
        (("events", "resend", made.id, "--failed-since=2026-01-01"), "0 events"),
        (("subscription", "delete", created["id"]), "deleted"),
    ]:
        status, out, errors = await run_fencepost(*words, env=env)
        assert (status, errors) == (0, ""), words
        assert expected in out
    status, _, errors = await run_fencepost("subscription", "show", created["id"], env=env)
    assert (status, errors.count("\n")) == (1, 1)


def test_the_sync_client_has_the_same_methods() -> None:
    names = [name for name in dir(AsyncClient) if "subscription" in name or name in ("replay", "attempts")]
    assert len(names) == 9
    assert all(hasattr(Client, name) for name in [*names, "rotate_secret"])
