"""The node verifies everything that the signing service returns: a wrong signature never leaves the node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from eth_account import Account

from fencepost.adapters.evm.encoding import MAX_RAW_BYTES, decode_signed
from fencepost.adapters.signers import load_keys
from fencepost.adapters.signers.remote import RemoteKeys
from fencepost.domain.ids import parse_address
from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType, UnsignedTx
from fencepost.errors import SettingError, SigningError, SigningRefused, Unready

pytest_plugins = ["fixtures.web3signer"]

Start = Callable[..., Awaitable[str]]

SECRET, OTHER_SECRET = "46" * 32, "47" * 32
ADDRESS = parse_address(Account.from_key(SECRET).address)
TO = parse_address("0x" + "35" * 20)
CALL = Call(TO, 10**18, b"\xca\xfe", (AccessEntry(TO, (b"\1" * 32,)),))
TX = UnsignedTx(31337, 7, CALL, 30_000, Fees(fee_cap_wei=3 * 10**9, tip_wei=10**9))


async def _sign(url: str, txs: list[UnsignedTx], **limits: float) -> list[bytes]:
    keys = await RemoteKeys.connect(url, **limits)
    try:
        return [signed.raw for signed in await keys.sign(ADDRESS, txs)]
    finally:
        await keys.aclose()


async def test_a_batch_larger_than_the_concurrency_limit_is_signed(web3signer: Start) -> None:
    txs = [TX.changed(nonce=nonce) for nonce in range(40)]
    raws = await _sign(await web3signer([SECRET]), txs)
    assert [decode_signed(raw).tx for raw in raws] == txs


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"to": "0x" + "36" * 20}, "to"),
        ({"value": "0x1"}, "value"),
        ({"data": "0x"}, "data"),
        ({"nonce": "0x8"}, "nonce"),
        ({"gas": "0x7531"}, "gas"),
        ({"chainId": "0x1"}, "chain id"),
        ({"maxFeePerGas": "0xffffffffff"}, "fees"),
        ({"accessList": []}, "access list"),  # web3signer leaves them out
        ({"value": "0x1", "nonce": "0x0"}, "nonce, value"),
    ],
)
async def test_a_changed_field_is_detected(web3signer: Start, change: dict[str, Any], named: str) -> None:
    url = await web3signer([SECRET], tamper=lambda fields: fields | change)
    with pytest.raises(SigningError, match=f"changed the transaction before it signed it: {named}$"):
        await _sign(url, [TX])


async def test_another_transaction_type_is_detected(web3signer: Start) -> None:
    def as_type_0(fields: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in fields.items() if name != "accessList"}
        return kept | {"type": "0x0"}

    tx = TX.changed(call=Call(TO), fees=Fees(5, 5), type=TxType.ACCESS_LIST)
    with pytest.raises(SigningError, match=r"signed it: type$"):
        await _sign(await web3signer([SECRET], tamper=as_type_0), [tx])


async def test_another_key_is_detected(web3signer: Start) -> None:
    with pytest.raises(SigningError, match=f"signed for 0x[0-9a-f]{{40}} instead of {ADDRESS}"):
        await _sign(await web3signer([SECRET], sign_as=OTHER_SECRET), [TX])


async def test_one_bad_answer_fails_the_batch(web3signer: Start) -> None:
    def change_one(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"value": "0x0"} if fields["nonce"] == "0x3" else fields

    url = await web3signer([SECRET], tamper=change_one)
    with pytest.raises(SigningError, match="value"):
        await _sign(url, [TX.changed(nonce=nonce) for nonce in range(20)])


def _answering(response: Callable[[], web.StreamResponse]) -> Any:
    async def answer(_request: web.Request, call: dict[str, Any]) -> web.StreamResponse | None:
        return response() if call["method"] == "eth_signTransaction" else None

    return answer


@pytest.mark.parametrize(
    ("status", "body", "is_refused"),
    [
        (200, '{"error": {"code": -32000, "message": "not allowed"}}', True),
        (400, '{"error": {"code": -32602, "message": "Invalid params"}}', True),
        (403, "forbidden by policy", True),
        (401, "who are you", False),
        (429, "slow down", False),
        (500, "<html>", False),
        (503, "", False),
    ],
)
async def test_a_rejection_differs_from_an_unavailable_service(
    web3signer: Start, status: int, body: str, *, is_refused: bool
) -> None:
    response = _answering(lambda: web.Response(status=status, text=body))
    with pytest.raises(SigningError) as caught:
        await _sign(await web3signer([SECRET], answer=response), [TX])
    assert isinstance(caught.value, SigningRefused) == is_refused


async def test_a_dropped_access_list_is_a_rejection(web3signer: Start) -> None:
    url = await web3signer([SECRET], tamper=lambda fields: fields | {"accessList": []})

    with pytest.raises(SigningRefused, match="access list"):
        await _sign(url, [TX])


REFUSAL = {
    "jsonrpc": "2.0",
    "id": 1,
    "error": {"code": -32000, "message": "key is \x1b[31mlocked" + "!" * 999},
}


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            lambda: web.json_response(REFUSAL, status=400),
            r"rejected the transaction: key is \[31mlocked!{183} \(code -32000\)",
        ),
        (lambda: web.Response(text="<html>", status=502), "HTTP 502 without a JSON-RPC response"),
        (lambda: web.Response(body=b'{"result": "\xff"}'), "without a JSON-RPC response"),
        (lambda: web.json_response({"id": 1}), "without a result"),
        (lambda: web.json_response({"result": {"raw": "0x00"}}), "not a raw transaction in hex"),
        (lambda: web.json_response({"result": "0xzz"}), "not a signed transaction"),
        (lambda: web.json_response({"result": "0x02c0"}), "not a signed transaction"),
        (lambda: web.Response(body=b" " * (3 * MAX_RAW_BYTES)), "larger than"),
        (lambda: web.Response(status=307, headers={"Location": "/other"}), "HTTP 307"),
    ],
    ids=[
        "refusal",
        "html",
        "not utf-8",
        "nothing",
        "object",
        "not hex",
        "no transaction",
        "huge",
        "redirect",
    ],
)
async def test_an_unusable_answer_is_a_signing_error(
    web3signer: Start, response: Callable[[], web.StreamResponse], message: str
) -> None:
    with pytest.raises(SigningError, match=message):
        await _sign(await web3signer([SECRET], answer=_answering(response)), [TX])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"call_timeout_s": 0.2}, "did not respond within 0.2 s"),
        ({"batch_timeout_s": 0.2}, "more than 0.2 s for a batch"),
    ],
)
async def test_a_silent_service_times_out(web3signer: Start, limits: dict[str, float], message: str) -> None:
    over = asyncio.Event()

    async def silence(_request: web.Request, call: dict[str, Any]) -> None:
        if call["method"] == "eth_signTransaction":
            await over.wait()

    with pytest.raises(SigningError, match=message):
        await _sign(await web3signer([SECRET], answer=silence), [TX], **limits)
    over.set()


async def test_a_service_that_closes_the_connection_is_a_signing_error(web3signer: Start) -> None:
    async def hang_up(request: web.Request, call: dict[str, Any]) -> None:
        if call["method"] == "eth_signTransaction" and request.transport is not None:
            request.transport.close()

    with pytest.raises(SigningError, match=r"cannot reach the signing service at 127\.0\.0\.1:"):
        await _sign(await web3signer([SECRET], answer=hang_up), [TX])


@pytest.mark.parametrize("accounts", ["none", ["0x12"], [7], {}, ["0x" + "1" * 40] * 10_001])
async def test_invalid_accounts_prevent_the_start(web3signer: Start, accounts: Any) -> None:
    async def answer(_request: web.Request, _call: dict[str, Any]) -> web.Response:
        return web.json_response({"result": accounts})

    with pytest.raises(Unready, match="accounts"):
        await RemoteKeys.connect(await web3signer([SECRET], answer=answer))


async def test_an_unreachable_service_prevents_the_start(unused_tcp_port: int) -> None:
    url = f"http://user:hunter2@127.0.0.1:{unused_tcp_port}/?token=hunter2"
    with pytest.raises(
        Unready, match=f"cannot reach the signing service at 127.0.0.1:{unused_tcp_port}"
    ) as caught:
        await RemoteKeys.connect(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "hunter2", "ftp://hunter2", "http://", "http://hunter2:port/", "http://[hunter2"]
)
async def test_a_malformed_url_is_not_quoted(url: str) -> None:
    with pytest.raises(SettingError, match="must be http") as caught:
        await RemoteKeys.connect(url)
    assert "hunter2" not in str(caught.value)


async def test_credentials_in_the_url_reach_only_the_service(web3signer: Start) -> None:
    seen = []

    async def look(request: web.Request, _call: dict[str, Any]) -> None:
        seen.append(request.headers.get("Authorization"))

    url = (await web3signer([SECRET], answer=look)).replace("http://", "http://user:hunter2@")
    keys = await RemoteKeys.connect(url)
    assert "hunter2" not in repr(keys)
    await keys.aclose()
    assert seen == ["Basic dXNlcjpodW50ZXIy"]


async def test_an_account_that_is_also_held_locally_is_rejected(web3signer: Start) -> None:
    with pytest.raises(SettingError, match=f"two key sources contain the key of {ADDRESS}"):
        await load_keys(private_keys=[SECRET], remote_url=await web3signer([SECRET]))
