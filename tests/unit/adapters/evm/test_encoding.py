"""Every signed transaction equals that of eth-account byte for byte, and decodes to its fields."""

from __future__ import annotations

from typing import Any

import pytest
from coincurve import PrivateKey
from eth_account import Account
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost.adapters.evm import rlp
from fencepost.adapters.evm.encoding import (
    MAX_RAW_BYTES,
    address_of,
    checksum_address,
    create_address,
    decode_signed,
    encode_fields,
    parse_checked_address,
    seal,
    sign_tx,
    signing_hash,
)
from fencepost.adapters.evm.keccak import keccak256
from fencepost.domain.ids import Address, parse_address
from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType, UnsignedTx

CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
KEY = PrivateKey(b"\x46" * 32)
TO = parse_address("0x" + "35" * 20)

_naturals = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 2))
_wei = st.one_of(_naturals, st.integers(0, 2**256 - 1))
_addresses = st.binary(min_size=20, max_size=20).map(lambda data: Address("0x" + data.hex()))
_calldata = st.one_of(st.binary(max_size=80), st.binary(min_size=200, max_size=1200))
_entries = st.builds(
    AccessEntry,
    address=_addresses,
    storage_keys=st.lists(st.binary(min_size=32, max_size=32), max_size=4).map(tuple),
)


@st.composite
def transactions(draw: st.DrawFn) -> UnsignedTx:
    tx_type = draw(st.sampled_from(TxType))
    cap_wei = draw(_wei)
    no_entries: st.SearchStrategy[tuple[AccessEntry, ...]] = st.just(())
    entries = no_entries if tx_type is TxType.LEGACY else st.lists(_entries, max_size=3).map(tuple)
    return UnsignedTx(
        chain_id=draw(st.one_of(st.integers(1, 100_000), st.integers(1, 2**63 - 37))),
        nonce=draw(_naturals),
        call=Call(
            to=draw(st.none() | _addresses),
            value_wei=draw(_wei),
            data=draw(_calldata),
            access_list=draw(entries),
        ),
        gas=draw(_naturals),
        fees=Fees(fee_cap_wei=cap_wei, tip_wei=draw(_wei) if tx_type is TxType.DYNAMIC_FEE else cap_wei),
        type=tx_type,
    )


def _for_eth_account(tx: UnsignedTx) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "chainId": tx.chain_id,
        "nonce": tx.nonce,
        "gas": tx.gas,
        "value": tx.call.value_wei,
        "data": tx.call.data,
        "to": b"" if tx.call.to is None else bytes.fromhex(tx.call.to[2:]),
    }
    if tx.type is TxType.DYNAMIC_FEE:
        fields |= {"maxFeePerGas": tx.fees.fee_cap_wei, "maxPriorityFeePerGas": tx.fees.tip_wei}
    else:
        fields |= {"gasPrice": tx.fees.fee_cap_wei}
    if tx.type is not TxType.LEGACY:
        fields |= {
            "type": int(tx.type),
            "accessList": [
                {"address": entry.address, "storageKeys": ["0x" + key.hex() for key in entry.storage_keys]}
                for entry in tx.call.access_list
            ],
        }
    return fields


@settings(max_examples=300, deadline=None)
@given(
    tx=transactions(), secret=st.integers(1, CURVE_ORDER - 1).map(lambda number: number.to_bytes(32, "big"))
)
@example(tx=UnsignedTx(1, 0, Call(None), 0, Fees(0, 0), TxType.LEGACY), secret=b"\0" * 31 + b"\1")
@example(
    tx=UnsignedTx(1, 0, Call(None, data=b"\0"), 0, Fees(0, 0)), secret=(CURVE_ORDER - 1).to_bytes(32, "big")
)
def test_signing_matches_eth_account_and_decodes_to_the_same_fields(tx: UnsignedTx, secret: bytes) -> None:
    signed = sign_tx(tx, PrivateKey(secret))
    account = Account.from_key(secret)
    expected = account.sign_transaction(_for_eth_account(tx))
    assert signed.raw == expected.raw_transaction
    assert signed.hash == "0x" + expected.hash.hex()
    decoded = decode_signed(signed.raw)
    assert decoded.tx == tx
    assert decoded.hash == signed.hash
    assert checksum_address(decoded.sender) == account.address == Account.recover_transaction(signed.raw)


def test_the_eip_155_example_is_reproduced() -> None:
    fees = Fees(fee_cap_wei=20 * 10**9, tip_wei=20 * 10**9)
    tx = UnsignedTx(1, 9, Call(TO, 10**18), 21000, fees, TxType.LEGACY)
    digest = signing_hash(tx, encode_fields(tx))
    assert digest.hex() == "daf5a779ae972f972197303d7b574746c7ef83eadac0f2791ad23db92e4c8e53"
    assert decode_signed(sign_tx(tx, KEY).raw).sender == "0x9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f"


def test_leading_zeros_of_signature_values_are_dropped() -> None:
    """One signature in 128 has one; the test searches until it has seen it in r and in s."""
    seen = set()
    for nonce in range(5000):
        tx = UnsignedTx(1, nonce, Call(TO), 21000, Fees(2, 1))
        signed = sign_tx(tx, KEY)
        items = rlp.decode(signed.raw[1:])
        assert isinstance(items, list)
        seen |= {place for place in (-2, -1) if len(items[place]) < 32}
        if seen == {-2, -1}:
            assert decode_signed(signed.raw).tx == tx
            return
    pytest.fail(f"no short number in 5000 signatures: {seen}")


PLAIN = UnsignedTx(1, 0, Call(TO, 1), 21000, Fees(2, 2))


@pytest.mark.parametrize(
    ("tx", "message"),
    [
        (PLAIN.changed(chain_id=0), "chain id 0"),
        (PLAIN.changed(chain_id=2**63), "chain id"),
        (PLAIN.changed(nonce=-1), "nonce -1"),
        (PLAIN.changed(nonce=2**64 - 1), "nonce"),
        (PLAIN.changed(gas=2**64), "gas"),
        (PLAIN.changed(call=Call(TO, 2**256)), "value"),
        (PLAIN.changed(fees=Fees(2**256, 0)), "fee cap"),
        (PLAIN.changed(fees=Fees(1, -1)), "tip -1"),
        (PLAIN.changed(fees=Fees(2, 1), type=TxType.LEGACY), "one price"),
        (PLAIN.changed(fees=Fees(2, 1), type=TxType.ACCESS_LIST), "one price"),
        (
            PLAIN.changed(call=Call(TO, access_list=(AccessEntry(TO),)), type=TxType.LEGACY),
            "no access list",
        ),
        (PLAIN.changed(call=Call(TO, access_list=(AccessEntry(TO, (b"1",)),))), "32 bytes"),
        (PLAIN.changed(call=Call(Address("0x1234"))), "20 bytes"),
    ],
)
def test_a_transaction_that_cannot_be_encoded_exactly_is_rejected(tx: UnsignedTx, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sign_tx(tx, KEY)


def test_a_signature_with_a_high_s_is_rejected() -> None:
    fields = encode_fields(PLAIN)
    signature = KEY.sign_recoverable(signing_hash(PLAIN, fields), hasher=None)
    assert decode_signed(seal(PLAIN, fields, signature).raw).sender == address_of(KEY.public_key)
    s = CURVE_ORDER - int.from_bytes(signature[32:64], "big")
    twin = signature[:32] + s.to_bytes(32, "big") + bytes((1 - signature[64],))
    with pytest.raises(ValueError, match="out of range"):
        decode_signed(seal(PLAIN, fields, twin).raw)


def test_a_signature_without_a_chain_id_is_rejected() -> None:
    items: list[rlp.Item] = [0, 1, 21000, b"\x35" * 20, 1, b"", 27, 5, 5]
    with pytest.raises(ValueError, match="every chain"):
        decode_signed(rlp.encode(items))


def test_seal_requires_a_complete_signature() -> None:
    fields = encode_fields(PLAIN)
    for signature in (b"", b"\1" * 64, b"\1" * 64 + b"\2"):
        with pytest.raises(ValueError, match="64 bytes and a parity"):
            seal(PLAIN, fields, signature)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "1 to"),
        (b"\x02" + b"\0" * MAX_RAW_BYTES, "1 to"),
        (b"\x03\xc0", "type 3"),
        (b"\x02\xc0", "number of fields"),
        (b"\x01\xc0", "number of fields"),
        (b"\x02\x05", "a list was expected"),
        (b"\xc0", "number of fields"),
        (b"\x02" + rlp.encode([1, 0, 1, 2, 21000, b"\x35" * 19, 1, b"", [], 0, 5, 5]), "not an address"),
        (b"\x02" + rlp.encode([1, 0, 1, 2, 21000, [b"\x35"], 1, b"", [], 0, 5, 5]), "bytes were expected"),
        (b"\x02" + rlp.encode([1, 0, 1, 2, 21000, [], 1, b"", [], 0, 5, 5]), "canonical"),
        (b"\x02" + rlp.encode([1, 0, 1, 2, 21000, b"", 1, b"", b"", 0, 5, 5]), "a list was expected"),
        (b"\x02" + rlp.encode([1, 0, 1, 2, 21000, b"", 1, b"", [b"x"], 0, 5, 5]), "access list"),
        (b"\x02" + rlp.encode([1, 0, 1, 2, 21000, b"", 1, b"", [], 2, 5, 5]), "out of range"),
        (b"\x02" + rlp.encode([1, 0, 1, 2, 21000, b"", 1, b"", [], 0, 0, 5]), "out of range"),
        (b"\x02" + rlp.encode([1, b"\0", 1, 2, 21000, b"", 1, b"", [], 0, 5, 5]), "leading zeros"),
    ],
)
def test_undecodable_bytes_report_why(raw: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_signed(raw)


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_damaged_bytes_are_rejected_or_are_another_transaction(at: int, byte: int) -> None:
    """A changed byte gives `ValueError` or a transaction that differs from the signed one."""
    entry = AccessEntry(TO, (b"\1" * 32,))
    tx = PLAIN.changed(call=Call(TO, 1, b"calldata", (entry,)))
    raw = bytearray(sign_tx(tx, KEY).raw)
    unchanged = raw[at % len(raw)] == byte
    raw[at % len(raw)] = byte
    try:
        decoded = decode_signed(bytes(raw))
    except ValueError:
        assert not unchanged
    else:
        assert ((decoded.tx, decoded.sender) == (tx, address_of(KEY.public_key))) == unchanged


# From EIP-55 itself.
CHECKSUMMED = [
    "0x52908400098527886E0F7030069857D2E4169EE7",
    "0x8617E340B3D01FA5F11F306F4090FD50E238070D",
    "0xde709f2102306220921060314715629080e2fb77",
    "0x27b1fdb04752bbc536007a920d24acb045561c26",
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
]


@pytest.mark.parametrize("text", CHECKSUMMED)
def test_eip_55_checksums_are_reproduced(text: str) -> None:
    address = Address(text.lower())
    assert checksum_address(address) == text
    for spelling in (text, text.lower(), "0x" + text[2:].upper()):
        assert parse_checked_address(spelling) == address


@pytest.mark.parametrize("text", CHECKSUMMED[4:])
def test_a_wrong_checksum_is_rejected(text: str) -> None:
    first_letter = next(at for at, char in enumerate(text) if at > 1 and char.isalpha())
    wrong = text[:first_letter] + text[first_letter].swapcase() + text[first_letter + 1 :]
    with pytest.raises(ValueError, match="checksum"):
        parse_checked_address(wrong)


@pytest.mark.parametrize("text", ["", "0x", "5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x" + "g" * 40])
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        parse_checked_address(text)


def test_the_address_of_a_deployed_contract_is_computed() -> None:
    """Known pairs: the first contracts of a well-known account, and Anvil's first account."""
    sender = Address("0x6ac7ea33f8831ea9dcc53393aaa88b25a785dbf0")
    assert create_address(sender, 0) == "0xcd234a471b72ba2f1ccf0a70fcaba648a5eecd8d"
    assert create_address(sender, 1) == "0x343c43a37d37dff08ae8c4a11544c718abb4fcf8"
    anvil = Address("0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266")
    assert create_address(anvil, 0) == "0x5fbdb2315678afecb367f032d93f642f64180aa3"


def test_keccak_is_the_variant_before_fips_202() -> None:
    assert keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
