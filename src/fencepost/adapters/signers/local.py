"""Sign with libsecp256k1 and keys that are held in this process.

Signatures are deterministic (RFC 6979) with a low `s`. Key objects are created once, because creating one costs more than
a signature.

Signing is CPU work on the event loop: all batches wait in one queue, and each turn of the loop signs
`MAX_TXS_PER_TURN` transactions (about 3 ms); an unfinished batch goes to the end of the queue. So neither a large batch
nor many signers block the loop. Threads were measured and are slower: libsecp256k1 releases the GIL, but reacquiring it
from a busy loop takes up to 5 ms per signature (20,000 per second fell to a few hundred).

No error message and no `repr` contains a secret.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from coincurve import PrivateKey

from fencepost.adapters.evm.encoding import address_of, sign_tx
from fencepost.application.ports import KeyPort, ToSign
from fencepost.domain.ids import Address
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.errors import SettingError, SigningRefused, UnknownSigner

MAX_TXS_PER_TURN = 50

_PRIVATE_KEY = re.compile(r"(0[xX])?([0-9a-fA-F]{64})")


class LocalKeys(KeyPort):
    def __init__(self, keys: Iterable[PrivateKey]) -> None:
        self._keys: dict[Address, PrivateKey] = {}
        for key in keys:
            address = address_of(key.public_key)
            if address in self._keys:
                raise SettingError(f"the key of {address} is given twice")
            self._keys[address] = key
        self._waiting: deque[_Batch] = deque()  # not empty exactly while a turn is scheduled

    @classmethod
    def from_hex(cls, private_keys: Iterable[str]) -> LocalKeys:
        return cls(
            parse_private_key(text, where=f"private key {n}") for n, text in enumerate(private_keys, 1)
        )

    def __repr__(self) -> str:
        return f"LocalKeys({', '.join(self._keys)})"

    def addresses(self) -> Sequence[Address]:
        return tuple(self._keys)

    def signs_locally(self, address: Address) -> bool:
        return address in self._keys

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        signed = _all_or_first_error(await self._sign_batch([(self._key_of(address), tx) for tx in txs]))
        if isinstance(signed, Exception):
            raise signed
        return signed

    async def sign_each(self, wanted: Sequence[ToSign]) -> Sequence[Sequence[SignedTx] | BaseException]:
        keys = self._keys
        items = [(keys[address], tx) for address, txs in wanted if address in keys for tx in txs]
        signed = iter(await self._sign_batch(items))
        return [
            _all_or_first_error(list(islice(signed, len(txs))))
            if address in keys
            else _unknown_signer(address)
            for address, txs in wanted
        ]

    def _key_of(self, address: Address) -> PrivateKey:
        key = self._keys.get(address)
        if key is None:
            raise _unknown_signer(address)
        return key

    async def _sign_batch(self, items: Sequence[tuple[PrivateKey, UnsignedTx]]) -> list[SignedTx | Exception]:
        loop = asyncio.get_running_loop()
        batch = _Batch(items=items, done=loop.create_future())
        if not self._waiting:
            loop.call_soon(self._run_turn, loop)
        self._waiting.append(batch)
        return await batch.done

    def _run_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        left = MAX_TXS_PER_TURN
        while self._waiting and left:
            batch = self._waiting.popleft()
            left -= batch.advance(left)
            if not batch.done.done():
                self._waiting.append(batch)
        if self._waiting:
            loop.call_soon(self._run_turn, loop)


def parse_private_key(text: str, *, where: str) -> PrivateKey:
    """Parse a private key; `where` names it in errors, which never contain the key."""
    match = _PRIVATE_KEY.fullmatch(text.strip())
    if match is None:
        raise SettingError(f"{where} is not 64 hex digits")
    return make_private_key(bytes.fromhex(match[2]), where=where)


def make_private_key(secret: bytes, *, where: str) -> PrivateKey:
    try:
        return PrivateKey(secret)
    except ValueError:  # zero, or not below the order of the curve; the cause could contain the secret
        raise SettingError(f"{where} is not a valid secp256k1 key") from None


@dataclass(slots=True, eq=False)
class _Batch:
    items: Sequence[tuple[PrivateKey, UnsignedTx]] = field(repr=False)
    done: asyncio.Future[list[SignedTx | Exception]]
    signed: list[SignedTx | Exception] = field(default_factory=list)

    def advance(self, limit: int) -> int:
        """Sign up to `limit` transactions, complete `done` after the last one, and return how many were tried."""
        if self.done.done():  # the caller was cancelled
            return 0
        start = len(self.signed)
        part = self.items[start : start + limit]
        self.signed += [_sign(key, tx) for key, tx in part]
        if len(self.signed) == len(self.items):
            self.done.set_result(self.signed)
        return len(part)


def _sign(key: PrivateKey, tx: UnsignedTx) -> SignedTx | Exception:
    """Sign one transaction; an error goes to its own caller only, and the rest of the batch continues."""
    try:
        return sign_tx(tx, key)
    except ValueError as error:
        failure = SigningRefused(f"a transaction cannot be signed: {error}")
        failure.__cause__ = error
        return failure
    except Exception as error:  # noqa: BLE001 - see above
        return error


def _all_or_first_error(signed: list[SignedTx | Exception]) -> list[SignedTx] | Exception:
    """Return all signed transactions, or the first error."""
    complete: list[SignedTx] = []
    for result in signed:
        if isinstance(result, Exception):
            return result
        complete.append(result)
    return complete


def _unknown_signer(address: Address) -> UnknownSigner:
    return UnknownSigner(f"this node has no key for {address}")
