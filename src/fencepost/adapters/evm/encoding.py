"""Encode, sign and decode transactions.

    UnsignedTx ──encode_fields──► fields ──signing_hash──► digest ──(a key)──► signature ──seal──► SignedTx
                                    └────────────────────────────────────────────────────────┘

Types 0 (with the chain id of EIP-155), 1 (EIP-2930) and 2 (EIP-1559). Fields are encoded once, for both the signing
hash and the signed bytes. A transaction that its type can't represent (an access list in type 0, a tip that differs from
the price in types 0 and 1, a number out of range) raises `ValueError`; nothing is dropped silently.

`decode_signed` accepts exactly the bytes that `seal` writes, for any valid signature with a low `s`, and recovers the
sender; everything else raises `ValueError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from coincurve import PrivateKey, PublicKey

from fencepost.adapters.evm import rlp
from fencepost.adapters.evm.keccak import keccak256
from fencepost.domain.ids import Address, TxHash, parse_address
from fencepost.domain.transaction import AccessEntry, Call, Fees, SignedTx, TxType, UnsignedTx

MAX_RAW_BYTES = 1024 * 1024  # nodes stop at 128 KiB; private chains may be set higher

_MAX_CHAIN_ID = 2**63 - 37  # EIP-2294: the v of type 0 still fits 64 bits
_MAX_NONCE = 2**64 - 2  # EIP-2681
_MAX_UINT64 = 2**64 - 1
_MAX_UINT256 = 2**256 - 1
_CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_EIP155_V = 35
_ADDRESS_BYTES = 20
_WORD_BYTES = 32
_SIGNATURE_BYTES = 65
_TYPE_BYTE = {tx_type: bytes((tx_type,)) for tx_type in TxType}
_LEGACY, _DYNAMIC_FEE = (
    TxType.LEGACY,
    TxType.DYNAMIC_FEE,
)  # looked up once: every transaction needs them several times
_WORD_HEADER = rlp.encode_string(b"\xff" * _WORD_BYTES)[:1]


@dataclass(frozen=True, slots=True)
class DecodedTx:
    tx: UnsignedTx
    sender: Address
    hash: TxHash


def sign_tx(tx: UnsignedTx, key: PrivateKey) -> SignedTx:
    fields = encode_fields(tx)
    return seal(tx, fields, key.sign_recoverable(signing_hash(tx, fields), hasher=None))


def encode_fields(tx: UnsignedTx) -> bytes:
    """Encode the fields of `tx` in RLP, without the enclosing list and without the signature's fields."""
    _check(tx)
    call, fees, nonce = tx.call, tx.fees, rlp.encode_number(tx.nonce)
    to = rlp.EMPTY_STRING if call.to is None else _encode_address(call.to)
    data = rlp.encode_string(call.data) if call.data else rlp.EMPTY_STRING
    price_to_data = (
        _encode_cached(fees.fee_cap_wei) + _encode_cached(tx.gas) + to + _encode_cached(call.value_wei) + data
    )
    if tx.type is _LEGACY:
        return nonce + price_to_data
    access_list = _encode_access_list(call.access_list) if call.access_list else rlp.EMPTY_LIST
    tip = _encode_cached(fees.tip_wei) if tx.type is _DYNAMIC_FEE else b""
    return _encode_cached(tx.chain_id) + nonce + tip + price_to_data + access_list


# Values that most transactions share: prices, gas limits and receivers. Nonces differ.
_encode_cached = lru_cache(maxsize=4096)(rlp.encode_number)


@lru_cache(maxsize=4096)
def _encode_address(address: Address) -> bytes:
    return rlp.encode_string(_address_bytes(address))


def _encode_access_list(entries: tuple[AccessEntry, ...]) -> bytes:
    return rlp.encode([(_address_bytes(entry.address), entry.storage_keys) for entry in entries])


def signing_hash(tx: UnsignedTx, fields: bytes) -> bytes:
    if tx.type is _LEGACY:
        return keccak256(rlp.wrap_list(fields + rlp.encode(tx.chain_id) + b"\x80\x80"))
    return keccak256(_TYPE_BYTE[tx.type] + rlp.wrap_list(fields))


def seal(tx: UnsignedTx, fields: bytes, signature: bytes) -> SignedTx:
    """Add the signature: r, s and the parity of R's y, 32 + 32 + 1 bytes, as libsecp256k1 returns it."""
    if len(signature) != _SIGNATURE_BYTES or signature[64] > 1:
        raise ValueError("a signature is 64 bytes and a parity of 0 or 1")
    parity, is_legacy = signature[64], tx.type is _LEGACY
    v = rlp.encode_number(tx.chain_id * 2 + _EIP155_V + parity if is_legacy else parity)
    body = rlp.wrap_list(fields + v + _encode_word(signature[:32]) + _encode_word(signature[32:64]))
    raw = body if is_legacy else _TYPE_BYTE[tx.type] + body
    return SignedTx(raw=raw, hash=TxHash("0x" + keccak256(raw).hex()))


def _encode_word(word: bytes) -> bytes:
    """Encode a number of 32 bytes, which rarely start with a zero."""
    return _WORD_HEADER + word if word[0] else rlp.encode_string(word.lstrip(b"\0"))


def decode_signed(raw: bytes) -> DecodedTx:
    if not 0 < len(raw) <= MAX_RAW_BYTES:
        raise ValueError(f"a raw transaction has 1 to {MAX_RAW_BYTES} bytes, not {len(raw)}")
    if raw[0] in (TxType.ACCESS_LIST, TxType.DYNAMIC_FEE):
        tx_type = TxType(raw[0])
        tx, signature = _read_typed(tx_type, _list_of(rlp.decode(raw[1:])))
    elif raw[0] >= 0xC0:  # noqa: PLR2004 - where RLP's lists begin; EIP-2718 types lie below
        tx, signature = _read_legacy(_list_of(rlp.decode(raw)))
    else:
        raise ValueError(f"transaction type {raw[0]} is not supported")
    fields = encode_fields(tx)
    sealed = seal(tx, fields, signature)
    if sealed.raw != raw:
        raise ValueError("the transaction is not in canonical form")
    return DecodedTx(tx=tx, sender=_recover(signing_hash(tx, fields), signature), hash=sealed.hash)


def address_of(public_key: PublicKey) -> Address:
    return Address("0x" + keccak256(public_key.format(compressed=False)[1:])[-_ADDRESS_BYTES:].hex())


def create_address(sender: Address, nonce: int) -> Address:
    """Compute the address of the contract that `sender` deploys with `nonce`."""
    return Address("0x" + keccak256(rlp.encode((_address_bytes(sender), nonce)))[-_ADDRESS_BYTES:].hex())


def checksum_address(address: Address) -> str:
    """Format an address with its EIP-55 checksum: a letter is upper-case where the hash has a digit of 8 or more."""
    digits = address[2:].lower()
    pattern = keccak256(digits.encode()).hex()
    return "0x" + "".join(
        [digit.upper() if mark >= "8" else digit for digit, mark in zip(digits, pattern, strict=False)]
    )


def parse_checked_address(text: str) -> Address:
    """Parse an address with letters in one case, or with a valid EIP-55 checksum."""
    address = parse_address(text)
    digits = text[2:]
    if digits not in (digits.lower(), digits.upper()) and digits != checksum_address(address)[2:]:
        raise ValueError(f"the checksum of address {text} is wrong: a digit may be mistyped")
    return address


def _check(tx: UnsignedTx) -> None:
    if not (1 <= tx.chain_id <= _MAX_CHAIN_ID and 0 <= tx.nonce <= _MAX_NONCE and 0 <= tx.gas <= _MAX_UINT64):
        raise ValueError(f"chain id {tx.chain_id}, nonce {tx.nonce} or gas {tx.gas} is out of range")
    if not 0 <= tx.call.value_wei <= _MAX_UINT256:
        raise ValueError(f"value {tx.call.value_wei} is out of range")
    if not (0 <= tx.fees.fee_cap_wei <= _MAX_UINT256 and 0 <= tx.fees.tip_wei <= _MAX_UINT256):
        raise ValueError(f"fee cap {tx.fees.fee_cap_wei} or tip {tx.fees.tip_wei} is out of range")
    if tx.type is not _DYNAMIC_FEE and tx.fees.tip_wei != tx.fees.fee_cap_wei:
        raise ValueError("a transaction of type 0 or 1 has one price: tip and fee cap must be equal")
    if tx.call.access_list and tx.type is TxType.LEGACY:
        raise ValueError("a transaction of type 0 has no access list")
    for entry in tx.call.access_list:
        if any(len(key) != _WORD_BYTES for key in entry.storage_keys):
            raise ValueError("a storage key in an access list is 32 bytes")


def _address_bytes(address: Address) -> bytes:
    data = bytes.fromhex(address[2:])
    if len(data) != _ADDRESS_BYTES:
        raise ValueError("an address is 20 bytes")
    return data


def _read_typed(tx_type: TxType, items: list[rlp.Decoded]) -> tuple[UnsignedTx, bytes]:
    if tx_type is TxType.ACCESS_LIST:  # one price, which then stands for tip and cap alike
        items = [*items[:3], *items[2:]]
    match items:
        case [chain_id, nonce, tip, cap, gas, to, value, payload, access_list, parity, r, s]:
            pass
        case _:
            raise ValueError(f"a transaction of type {tx_type:d} has the wrong number of fields")
    tx = UnsignedTx(
        chain_id=rlp.decode_natural(chain_id),
        nonce=rlp.decode_natural(nonce),
        call=_read_call(to, value, payload, _read_access_list(access_list)),
        gas=rlp.decode_natural(gas),
        fees=Fees(fee_cap_wei=rlp.decode_natural(cap), tip_wei=rlp.decode_natural(tip)),
        type=tx_type,
    )
    return tx, _signature(parity=rlp.decode_natural(parity), r=r, s=s)


def _read_legacy(items: list[rlp.Decoded]) -> tuple[UnsignedTx, bytes]:
    match items:
        case [nonce, price, gas, to, value, payload, v, r, s]:
            pass
        case _:
            raise ValueError("a transaction of type 0 has the wrong number of fields")
    chain_id, parity = divmod(rlp.decode_natural(v) - _EIP155_V, 2)
    if chain_id < 1:
        raise ValueError("the signature has no chain id (EIP-155): it would be valid on every chain")
    price_wei = rlp.decode_natural(price)
    tx = UnsignedTx(
        chain_id=chain_id,
        nonce=rlp.decode_natural(nonce),
        call=_read_call(to, value, payload, ()),
        gas=rlp.decode_natural(gas),
        fees=Fees(fee_cap_wei=price_wei, tip_wei=price_wei),
        type=TxType.LEGACY,
    )
    return tx, _signature(parity=parity, r=r, s=s)


def _read_call(
    to: rlp.Decoded, value: rlp.Decoded, payload: rlp.Decoded, access_list: tuple[AccessEntry, ...]
) -> Call:
    return Call(
        to=_read_address(to) if to else None,
        value_wei=rlp.decode_natural(value),
        data=_bytes_of(payload),
        access_list=access_list,
    )


def _read_access_list(items: rlp.Decoded) -> tuple[AccessEntry, ...]:
    entries = []
    for item in _list_of(items):
        match item:
            case [address, [*storage_keys]]:
                keys = tuple(_bytes_of(key) for key in storage_keys)
                entries.append(AccessEntry(address=_read_address(address), storage_keys=keys))
            case _:
                raise ValueError("an entry of the access list is not an address with storage keys")
    return tuple(entries)


def _read_address(item: rlp.Decoded) -> Address:
    return parse_address("0x" + _bytes_of(item).hex())


def _signature(*, parity: int, r: rlp.Decoded, s: rlp.Decoded) -> bytes:
    r_number, s_number = rlp.decode_natural(r), rlp.decode_natural(s)
    if parity not in (0, 1) or not 0 < r_number < _CURVE_ORDER or not 0 < s_number <= _CURVE_ORDER // 2:
        raise ValueError("the signature is out of range (EIP-2)")
    return r_number.to_bytes(32, "big") + s_number.to_bytes(32, "big") + bytes((parity,))


def _recover(digest: bytes, signature: bytes) -> Address:
    return address_of(PublicKey.from_signature_and_message(signature, digest, hasher=None))


def _list_of(item: rlp.Decoded) -> list[rlp.Decoded]:
    if not isinstance(item, list):
        raise ValueError("a list was expected")  # noqa: TRY004 - decoding raises ValueError only
    return item


def _bytes_of(item: rlp.Decoded) -> bytes:
    if not isinstance(item, bytes):
        raise ValueError("bytes were expected, not a list")  # noqa: TRY004 - decoding raises ValueError only
    return item
