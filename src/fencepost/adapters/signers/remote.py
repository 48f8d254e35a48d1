"""Sign with a service over HTTP that has `eth_accounts` and `eth_signTransaction`, such as web3signer.

The service is not trusted: its result is decoded and must be the requested transaction, field by field, signed by the
requested account. A service that serves another chain, rounds a fee or drops an access list causes `SigningRefused`, and
nothing is sent. Whether equal transactions get equal bytes depends on the service: with web3signer's own keys they do,
with some hardware they do not.

A rejection (a JSON-RPC error, HTTP 4xx, a signature of another transaction) is `SigningRefused`. No response, or one that
says nothing about the transaction, is a plain `SigningError`: the service is not available.

web3signer takes one call per request, so a batch takes as many requests, `_MAX_CALLS` at a time; the first failure ends
the batch. Time and size of every response are bounded. Messages never contain the URL, which may have credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from fencepost import bounded_json
from fencepost.adapters.evm.encoding import MAX_RAW_BYTES, decode_signed, encode_fields
from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address, parse_address
from fencepost.domain.transaction import SignedTx, TxType, UnsignedTx
from fencepost.errors import SettingError, SigningError, SigningRefused, UnknownSigner, Unready

CALL_TIMEOUT_S = 10.0
BATCH_TIMEOUT_S = 60.0

_MAX_CALLS = 16
_MAX_RESPONSE_BYTES = 2 * MAX_RAW_BYTES + 4096  # two hex digits per byte, and the JSON around them
_MAX_ACCOUNTS = 10_000
_MAX_MESSAGE_CHARS = 200
_SERVICE_STATUSES = frozenset({401, 404, 405, 407, 408, 429})
_URL_FORM = "the URL of the signing service must be http://HOST or https://HOST"


class _Error(msgspec.Struct):
    code: int | None = None
    message: str = ""


class _SignerResponse(msgspec.Struct):
    result: Any = None
    error: _Error | None = None


_DECODER = msgspec.json.Decoder(_SignerResponse)


class RemoteKeys(KeyPort):
    """Keys of a signing service. Create it with `connect`; `aclose` closes the connections."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, call_timeout_s: float, batch_timeout_s: float
    ) -> None:
        self._session = session
        self._url = url
        self._host_and_port = _parse_host_and_port(url)
        self._call_timeout = aiohttp.ClientTimeout(total=call_timeout_s)
        self._batch_timeout_s = batch_timeout_s
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        self._addresses: tuple[Address, ...] = ()

    @classmethod
    async def connect(
        cls, url: str, *, call_timeout_s: float = CALL_TIMEOUT_S, batch_timeout_s: float = BATCH_TIMEOUT_S
    ) -> RemoteKeys:
        """Connect and fetch the accounts of the service; raise `Unready` if it does not return them."""
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MAX_CALLS), cookie_jar=aiohttp.DummyCookieJar()
        )
        try:
            keys = cls(session, url, call_timeout_s=call_timeout_s, batch_timeout_s=batch_timeout_s)
            keys._addresses = await keys._fetch_accounts()
        except BaseException:
            await session.close()
            raise
        return keys

    def __repr__(self) -> str:
        return f"RemoteKeys({self._host_and_port}, {len(self._addresses)} accounts)"

    async def aclose(self) -> None:
        await self._session.close()

    def addresses(self) -> Sequence[Address]:
        return self._addresses

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if address not in self._addresses:
            raise UnknownSigner(f"the signing service has no account {address}")
        try:
            async with asyncio.timeout(self._batch_timeout_s):
                return await self._sign_all(address, txs)
        except TimeoutError:
            raise SigningError(
                f"the signing service took more than {self._batch_timeout_s:g} s for a batch"
            ) from None

    async def _sign_all(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        failure: BaseException | None = None
        tasks: list[asyncio.Task[SignedTx]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._sign_one(address, tx)) for tx in txs]
        except* SigningError as failures:
            failure = failures.exceptions[0]
        if failure is not None:
            raise failure
        return [task.result() for task in tasks]

    async def _sign_one(self, address: Address, tx: UnsignedTx) -> SignedTx:
        try:
            encode_fields(tx)
        except ValueError as error:
            raise SigningRefused(f"a transaction cannot be signed: {error}") from error
        async with self._calls:
            result = await self._call("eth_signTransaction", [_parameters(address, tx)])
        return _verify(result, address, tx)

    async def _fetch_accounts(self) -> tuple[Address, ...]:
        try:
            accounts = msgspec.convert(await self._call("eth_accounts", []), list[str])
            if len(accounts) > _MAX_ACCOUNTS:
                raise Unready(f"the signing service has more than {_MAX_ACCOUNTS} accounts")
            return tuple(dict.fromkeys(parse_address(account) for account in accounts))
        except SigningError as error:
            raise Unready(str(error)) from error
        except ValueError:  # msgspec's errors are among them
            raise Unready("the signing service did not return a list of addresses for eth_accounts") from None

    async def _call(self, method: str, params: list[Any]) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        try:
            async with self._session.post(
                self._url,
                data=msgspec.json.encode(request),
                headers={"Content-Type": "application/json"},
                timeout=self._call_timeout,
                allow_redirects=False,
            ) as response:
                status = response.status
                body = await _read_bounded(response)
        except TimeoutError:
            raise SigningError(
                f"the signing service did not respond within {self._call_timeout.total:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            # Not chained: aiohttp's errors may carry the URL with its credentials.
            raise SigningError(
                f"cannot reach the signing service at {self._host_and_port}: {type(error).__name__}"
            ) from None
        return _decode_response(body, status)


def _parse_host_and_port(url: str) -> str:
    """Return host and port, the part of the URL that messages may contain."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):  # their messages contain the URL
        raise SettingError(_URL_FORM) from None
    if not parts.hostname:
        raise SettingError(_URL_FORM)
    return f"{parts.hostname}:{port}"


def _parameters(address: Address, tx: UnsignedTx) -> dict[str, Any]:
    call = tx.call
    parameters: dict[str, Any] = {
        "from": address,
        "nonce": hex(tx.nonce),
        "gas": hex(tx.gas),
        "value": hex(call.value_wei),
        "data": "0x" + call.data.hex(),
        "chainId": hex(tx.chain_id),
        "type": hex(tx.type),
    }
    if call.to is not None:
        parameters["to"] = call.to
    if tx.type is TxType.DYNAMIC_FEE:
        parameters["maxFeePerGas"] = hex(tx.fees.fee_cap_wei)
        parameters["maxPriorityFeePerGas"] = hex(tx.fees.tip_wei)
    else:
        parameters["gasPrice"] = hex(tx.fees.fee_cap_wei)
    if tx.type is not TxType.LEGACY:
        parameters["accessList"] = [
            {"address": entry.address, "storageKeys": ["0x" + key.hex() for key in entry.storage_keys]}
            for entry in call.access_list
        ]
    return parameters


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_RESPONSE_BYTES:
            raise SigningError(
                f"the response of the signing service is larger than {_MAX_RESPONSE_BYTES} bytes"
            )
    return bytes(body)


def _decode_response(body: bytes, status: int) -> Any:
    """Decode a response by its body: services send errors with status 200 or 4xx."""
    try:
        answer = bounded_json.decode(body, _DECODER.decode)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        failure = SigningRefused if _is_rejection(status) else SigningError
        raise failure(
            f"the signing service returned HTTP {status} without a JSON-RPC response: check keys.remote_url"
        ) from None
    if answer.error is not None:
        message = "".join(char for char in answer.error.message if char.isprintable())[:_MAX_MESSAGE_CHARS]
        raise SigningRefused(
            f"the signing service rejected the transaction: {message} (code {answer.error.code})"
        )
    if answer.result is None:
        raise SigningError(f"the signing service returned HTTP {status} without a result")
    return answer.result


def _is_rejection(status: int) -> bool:
    """Return whether a status concerns this call; others concern the service or its rate limit."""
    return 400 <= status < 500 and status not in _SERVICE_STATUSES  # noqa: PLR2004 - the statuses of bad calls


def _verify(result: Any, address: Address, tx: UnsignedTx) -> SignedTx:
    if not isinstance(result, str) or not result.startswith("0x"):
        raise SigningRefused("the signing service's result is not a raw transaction in hex")
    try:
        raw = bytes.fromhex(result[2:])
        decoded = decode_signed(raw)
    except ValueError as error:
        raise SigningRefused(f"the signing service's result is not a signed transaction: {error}") from error
    if decoded.tx != tx:
        raise SigningRefused(
            f"the signing service changed the transaction before it signed it: {', '.join(_differences(tx, decoded.tx))}"
        )
    if decoded.sender != address:
        raise SigningRefused(f"the signing service signed for {decoded.sender} instead of {address}")
    return SignedTx(raw=raw, hash=decoded.hash)


def _differences(requested: UnsignedTx, signed: UnsignedTx) -> list[str]:
    pairs = {
        "type": (requested.type, signed.type),
        "chain id": (requested.chain_id, signed.chain_id),
        "nonce": (requested.nonce, signed.nonce),
        "gas": (requested.gas, signed.gas),
        "fees": (requested.fees, signed.fees),
        "to": (requested.call.to, signed.call.to),
        "value": (requested.call.value_wei, signed.call.value_wei),
        "data": (requested.call.data, signed.call.data),
        "access list": (requested.call.access_list, signed.call.access_list),
    }
    return [name for name, (wanted, got) in pairs.items() if wanted != got]
