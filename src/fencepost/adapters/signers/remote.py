"""A signing service over HTTP that speaks `eth_accounts` and `eth_signTransaction`, as web3signer does.

The service is asked, not trusted: what it returns is decoded and must be the transaction that was asked for, field by
field, signed by the account that was asked for. A service configured for another chain, one that rounds a fee, one
that leaves out an access list: each is a `SigningError` and nothing goes out. Whether equal transactions get equal
bytes is the service's affair; web3signer's own keys do, those in some hardware do not.

web3signer takes one call a request, so a batch is that many requests, `_CALLS_MAX` at a time; the first failure ends
the batch. Time and size of every answer are bounded. The URL may carry credentials and never shows in messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from fencepost import bounded_json
from fencepost.adapters.evm.encoding import RAW_BYTES_MAX, decode_signed, encode_fields
from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address, parse_address
from fencepost.domain.transaction import SignedTx, TxType, UnsignedTx
from fencepost.errors import SettingError, SigningError, UnknownSigner, Unready

CALL_TIMEOUT_S = 10.0
BATCH_TIMEOUT_S = 60.0

_CALLS_MAX = 16
_ANSWER_BYTES_MAX = 2 * RAW_BYTES_MAX + 4096  # two hex digits a byte, and the JSON around them
_ACCOUNTS_MAX = 10_000
_MESSAGE_CHARS_MAX = 200
_URL_FORM = "the URL of the signing service must be http://HOST or https://HOST"


class _Error(msgspec.Struct):
    code: int | None = None
    message: str = ""


class _Answer(msgspec.Struct):
    result: Any = None
    error: _Error | None = None


_ANSWERS = msgspec.json.Decoder(_Answer)


class RemoteKeys(KeyPort):
    """Made by `connect`; `aclose` lets go of the connections."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, call_timeout_s: float, batch_timeout_s: float
    ) -> None:
        self._session = session
        self._url = url
        self._place = _place_of(url)
        self._call_timeout = aiohttp.ClientTimeout(total=call_timeout_s)
        self._batch_timeout_s = batch_timeout_s
        self._calls = asyncio.Semaphore(_CALLS_MAX)
        self._addresses: tuple[Address, ...] = ()

    @classmethod
    async def connect(
        cls, url: str, *, call_timeout_s: float = CALL_TIMEOUT_S, batch_timeout_s: float = BATCH_TIMEOUT_S
    ) -> RemoteKeys:
        """Asks the service which accounts it signs for; `Unready` if it does not say."""
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CALLS_MAX), cookie_jar=aiohttp.DummyCookieJar()
        )
        try:
            keys = cls(session, url, call_timeout_s=call_timeout_s, batch_timeout_s=batch_timeout_s)
            keys._addresses = await keys._ask_accounts()
        except BaseException:
            await session.close()
            raise
        return keys

    def __repr__(self) -> str:
        return f"RemoteKeys({self._place}, {len(self._addresses)} accounts)"

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
            raise SigningError(f"a transaction cannot be signed: {error}") from error
        async with self._calls:
            result = await self._call("eth_signTransaction", [_parameters(address, tx)])
        return _verify(result, address, tx)

    async def _ask_accounts(self) -> tuple[Address, ...]:
        try:
            accounts = msgspec.convert(await self._call("eth_accounts", []), list[str])
            if len(accounts) > _ACCOUNTS_MAX:
                raise Unready(f"the signing service names more than {_ACCOUNTS_MAX} accounts")
            return tuple(dict.fromkeys(parse_address(account) for account in accounts))
        except SigningError as error:
            raise Unready(str(error)) from error
        except ValueError:  # msgspec's errors are among them
            raise Unready("the signing service's list of accounts is not a list of addresses") from None

    async def _call(self, method: str, params: list[Any]) -> Any:
        question = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        try:
            async with self._session.post(
                self._url,
                data=msgspec.json.encode(question),
                headers={"Content-Type": "application/json"},
                timeout=self._call_timeout,
                allow_redirects=False,
            ) as response:
                status = response.status
                body = await _read_bounded(response)
        except TimeoutError:
            raise SigningError(
                f"the signing service did not answer within {self._call_timeout.total:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            # Not chained: aiohttp's errors may carry the URL with its credentials.
            raise SigningError(
                f"no answer from the signing service at {self._place}: {type(error).__name__}"
            ) from None
        return _read_answer(body, status)


def _place_of(url: str) -> str:
    """Host and port, which may be shown."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):  # their text quotes the URL
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
        if len(body) > _ANSWER_BYTES_MAX:
            raise SigningError(f"the signing service's answer is larger than {_ANSWER_BYTES_MAX} bytes")
    return bytes(body)


def _read_answer(body: bytes, status: int) -> Any:
    """Errors come with status 200 or 4xx, depending on the service: the body decides."""
    try:
        answer = bounded_json.decode(body, _ANSWERS.decode)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise SigningError(
            f"the signing service answered HTTP {status} with something else than JSON-RPC"
        ) from None
    if answer.error is not None:
        said = "".join(char for char in answer.error.message if char.isprintable())[:_MESSAGE_CHARS_MAX]
        raise SigningError(f"the signing service refused: {said} (code {answer.error.code})")
    if answer.result is None:
        raise SigningError(f"the signing service answered HTTP {status} without a result")
    return answer.result


def _verify(result: Any, address: Address, tx: UnsignedTx) -> SignedTx:
    if not isinstance(result, str) or not result.startswith("0x"):
        raise SigningError("the signing service's result is not a raw transaction in hex")
    try:
        raw = bytes.fromhex(result[2:])
        decoded = decode_signed(raw)
    except ValueError as error:
        raise SigningError(f"the signing service's result is not a signed transaction: {error}") from error
    if decoded.tx != tx:
        raise SigningError(
            f"the signing service signed something else than it was asked to: {', '.join(_changed(tx, decoded.tx))}"
        )
    if decoded.sender != address:
        raise SigningError(f"the signing service signed for {decoded.sender} instead of {address}")
    return SignedTx(raw=raw, hash=decoded.hash)


def _changed(asked: UnsignedTx, signed: UnsignedTx) -> list[str]:
    pairs = {
        "type": (asked.type, signed.type),
        "chain id": (asked.chain_id, signed.chain_id),
        "nonce": (asked.nonce, signed.nonce),
        "gas": (asked.gas, signed.gas),
        "fees": (asked.fees, signed.fees),
        "to": (asked.call.to, signed.call.to),
        "value": (asked.call.value_wei, signed.call.value_wei),
        "data": (asked.call.data, signed.call.data),
        "access list": (asked.call.access_list, signed.call.access_list),
    }
    return [name for name, (wanted, got) in pairs.items() if wanted != got]
