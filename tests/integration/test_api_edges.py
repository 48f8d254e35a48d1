"""Values that parse but fit no column, in every place a caller can use: an answer, never a 500."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import quote

import msgspec
import pytest

from fencepost.api.operations import operations
from fencepost.application.api_keys import Scope
from fixtures.api import ApiServer
from integration.rpc_calls import fault, post, result, rpc_call

NASTY = [
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "9" * 5000,
    "-" + "9" * 5000,
    "18446744073709551616",
    "9223372036854775808",
    f"{2**64 - 1}-{2**63 - 1}",
    f"{'9' * 40}-1",
    "\0",
    "a\0b",
    "\uff11\uff12",
    "²",
    "\ud800",
    "nan",
    "inf",
    "1e999",
    "%00",
    "",
    "0x" + "0" * 40,
    "0x" + "f" * 64,
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
]  # fmt: skip
_PARAMETER = re.compile(r"\{([a-z_]+)\}")
_PLAIN = {
    "address": "0x" + "11" * 20,
    "tx_id": "0" * 32,
    "hash": "0x" + "11" * 32,
    "command_id": "1",
    "subscription_id": "0" * 32,
    "chain_id": "1",
    "nonce": "1",
}


def percent(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def targets() -> list[tuple[str, str, str]]:
    """Yield method, target and value: every operation with every edge value in every path and query parameter."""
    found: list[tuple[str, str, str]] = []
    for operation in operations():
        names = _PARAMETER.findall(operation.path)
        plain = _PARAMETER.sub(lambda match: _PLAIN[match[1]], operation.path)
        for value in NASTY:
            for name in names:
                own = {**{key: _PLAIN[key] for key in names}, name: percent(value) or "%20"}
                path = _PARAMETER.sub(lambda match, own=own: own[match[1]], operation.path)  # type: ignore[misc]  # mypy infers no type for a lambda with a default
                found.append((operation.method, path, f"{operation.name} {name}"))
            for field in msgspec.structs.fields(operation.query):
                target = f"{plain}?{field.encode_name}={percent(value)}"
                if "signer" in operation.query.__struct_fields__ and field.name != "signer":
                    target += f"&signer={_PLAIN['address']}"
                if "request_id" in operation.query.__struct_fields__ and field.name != "request_id":
                    target += "&requestId=r"
                found.append((operation.method, target, f"{operation.name} ?{field.encode_name}"))
    return found


async def _status(api: ApiServer, method: str, target: str) -> int:
    place = api.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*place.split(":"))
    try:
        head = f"{method} {target} HTTP/1.1\r\nhost: {place}\r\nconnection: close\r\n"
        body = b'{"reason": "r", "decision": "keep"}' if method in ("POST", "PUT") else b""
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(60):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def test_no_parameter_of_any_operation_makes_a_500(api: ApiServer) -> None:
    tried = targets()
    assert len(tried) > 500
    turns = asyncio.Semaphore(8)

    async def one(method: str, target: str, what: str) -> tuple[str, str, int]:
        async with turns:
            return what, target[:200], await _status(api, method, target)

    answers = await asyncio.gather(*(one(*each) for each in tried))
    assert [answer for answer in answers if answer[2] >= 500] == []
    assert {answer[2] for answer in answers} >= {400, 404}


@pytest.mark.parametrize("chain", ["9" * 5000, "0", "-1", "%C2%B2", "%00", "1e3"])
async def test_a_chain_id_that_is_no_number_is_unknown(api: ApiServer, chain: str) -> None:
    status, said = await post(api, rpc_call("eth_chainId"), path=f"/rpc/{chain}")
    assert (status, said["error"]["data"]["code"]) == (400, "chain_unknown")


async def test_a_path_with_a_trailing_slash_is_not_redirected(api: ApiServer) -> None:
    for path in ("//api/v1/tx/", "//rpc/", "//healthz/", "//docs/"):
        answer = await api.send("GET", path, headers={"Host": "other.example"}, allow_redirects=False)
        assert answer.status in (404, 405), path
        assert "Location" not in answer.headers


async def test_a_key_does_not_see_the_queue_of_another_signer(api: ApiServer) -> None:
    own, other = api.signers[:2]
    assert (await api.post(f"/signers/{other}/pause", timeout=60)).status == 200
    for number in range(3):
        assert (await api.post("/tx", api.transfer(f"w-{number}", signer=other))).status == 202
    everyone = api.with_token(await api.key(Scope.TX_READ))
    limited = api.with_token(await api.key(Scope.TX_READ, signers=frozenset({own})))
    assert await result(everyone, "eth_getTransactionCount", other, "pending") == "0x3"
    assert await result(limited, "eth_getTransactionCount", other, "pending") == "0x0"


async def test_an_admin_key_for_some_signers_cannot_operate_the_node(api: ApiServer) -> None:
    own = api.signers[0]
    limited = api.with_token(await api.key(Scope.ADMIN, signers=frozenset({own})))
    for method in ("anvil_mine", "evm_increaseTime", "personal_listAccounts", "miner_stop"):
        number, _, data = await fault(limited, method)
        assert (number, data["code"]) == (-32004, "method_not_allowed"), method
    full = api.with_token(await api.key(Scope.ADMIN))
    assert await result(full, "anvil_nodeInfo")


async def test_invalid_keys_are_throttled_and_valid_keys_are_not(api: ApiServer) -> None:
    token = await api.key(Scope.TX_READ)
    good = api.with_token(token)
    assert (await good.get("/tx")).status == 200
    codes = [(await api.with_token(f"fp_{number:016x}_wrong").get("/tx")).problem[1] for number in range(40)]
    assert codes[:10] == ["key_invalid"] * 10
    assert codes[-1] == "auth_throttled"
    refused = await api.with_token(f"fp_{token.split('_')[1]}_wrong").get("/tx")
    assert refused.problem[:2] == (429, "auth_throttled")
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await good.get("/tx")).status == 200
