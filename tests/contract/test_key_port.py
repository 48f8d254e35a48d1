"""The contract of the key port, checked over each way to hold a key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from eth_account import Account
from eth_keyfile.keyfile import create_keyfile_json

from fencepost.adapters.evm.encoding import decode_signed
from fencepost.adapters.signers import KeyRing, load_keys
from fencepost.adapters.signers.keystore import load_keystores
from fencepost.adapters.signers.local import LocalKeys
from fencepost.adapters.signers.remote import RemoteKeys
from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address, parse_address
from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType, UnsignedTx
from fencepost.errors import SigningError, UnknownSigner

pytest_plugins = ["fixtures.web3signer"]

SECRETS = ["46" * 32, "47" * 32]
ADDRESSES = [parse_address(Account.from_key(secret).address) for secret in SECRETS]
ON_OTHER_CHAIN = parse_address("0x" + "aa" * 20)
TO = parse_address("0x" + "35" * 20)
PLAIN = UnsignedTx(
    31337, 7, Call(TO, 10**18, b"\xca\xfe"), 30_000, Fees(fee_cap_wei=3 * 10**9, tip_wei=10**9)
)
ONE_PRICE = Fees(fee_cap_wei=10**9, tip_wei=10**9)


async def _keystores(directory: Path) -> LocalKeys:
    for secret in SECRETS:
        document = create_keyfile_json(bytes.fromhex(secret), b"open sesame", kdf="scrypt", iterations=2)
        (directory / f"{document['id']}.json").write_text(json.dumps(document))
    password_file = directory / "password"
    password_file.touch(mode=0o600)
    password_file.write_text("open sesame\n")
    return await load_keystores(directory, password_file=password_file)


@pytest.fixture(params=["local", "keystore", "remote", "ring"])
async def port(
    request: pytest.FixtureRequest, tmp_path: Path, web3signer: Callable[..., Awaitable[str]]
) -> AsyncIterator[KeyPort]:
    if request.param == "local":
        yield LocalKeys.from_hex(SECRETS)
    elif request.param == "keystore":
        yield await _keystores(tmp_path)
    else:
        open_port: RemoteKeys | KeyRing
        if request.param == "remote":
            open_port = await RemoteKeys.connect(await web3signer(SECRETS))
        else:
            open_port = await load_keys(private_keys=SECRETS[:1], remote_url=await web3signer(SECRETS[1:]))
        yield open_port
        await open_port.aclose()


def test_a_key_port_lists_its_addresses(port: KeyPort) -> None:
    assert sorted(port.addresses()) == sorted(ADDRESSES)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_transactions_are_signed_in_order_with_the_named_key(port: KeyPort, address: Address) -> None:
    txs = [PLAIN.changed(nonce=nonce) for nonce in (5, 3, 4)]
    signed = await port.sign(address, txs)
    decoded = [decode_signed(tx.raw) for tx in signed]
    assert [item.tx for item in decoded] == txs
    assert {item.sender for item in decoded} == {address}
    assert [item.hash for item in decoded] == [tx.hash for tx in signed]


@pytest.mark.parametrize(
    "tx",
    [
        PLAIN,
        PLAIN.changed(call=Call(None, 0, b"\x60\x00")),
        PLAIN.changed(call=Call(TO, access_list=(AccessEntry(TO, (b"\1" * 32,)),))),
        PLAIN.changed(fees=ONE_PRICE, type=TxType.LEGACY),
        PLAIN.changed(call=Call(TO, access_list=(AccessEntry(TO),)), fees=ONE_PRICE, type=TxType.ACCESS_LIST),
    ],
    ids=["transfer", "deployment", "with access list", "type 0", "type 1"],
)
async def test_the_same_transaction_gives_the_same_bytes(port: KeyPort, tx: UnsignedTx) -> None:
    (first,) = await port.sign(ADDRESSES[1], [tx])
    (second,) = await port.sign(ADDRESSES[1], [tx])
    assert first == second
    assert decode_signed(first.raw).tx == tx


async def test_an_empty_list_needs_no_signature(port: KeyPort) -> None:
    assert list(await port.sign(ADDRESSES[0], [])) == []


async def test_an_unknown_signer_raises_its_own_error(port: KeyPort) -> None:
    with pytest.raises(UnknownSigner, match=ON_OTHER_CHAIN):
        await port.sign(ON_OTHER_CHAIN, [PLAIN])


async def test_one_failure_signs_nothing(port: KeyPort) -> None:
    impossible = PLAIN.changed(nonce=-1)
    with pytest.raises(SigningError, match="nonce -1"):
        await port.sign(ADDRESSES[0], [PLAIN, impossible, PLAIN])
    assert len(await port.sign(ADDRESSES[0], [PLAIN])) == 1  # it still works


def test_repr_and_errors_contain_no_secret(port: KeyPort) -> None:
    for text in (repr(port), str(port), f"{port}"):
        assert not any(secret in text for secret in SECRETS)
