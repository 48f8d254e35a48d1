"""The key ring: the source that holds a key signs with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.adapters.signers import KeyRing, load_keys
from fencepost.adapters.signers.local import LocalKeys
from fencepost.adapters.signers.remote import RemoteKeys
from fencepost.errors import SettingError, UnknownSigner
from unit.adapters.signers.key_material import (
    ADDRESSES,
    PLAIN,
    SECRETS,
    private_file,
    write_keystore,
)


async def test_a_ring_signs_with_the_source_that_holds_the_key(
    tmp_path: Path, directory: Path, password_file: Path
) -> None:
    write_keystore(directory, SECRETS[2])
    ring = await load_keys(
        private_keys=SECRETS[:1],
        key_file=private_file(tmp_path / "keys", SECRETS[1]),
        keystore_dir=directory,
        password_file=password_file,
    )
    assert list(ring.addresses()) == ADDRESSES
    for address, secret in zip(ADDRESSES, SECRETS, strict=True):
        assert await ring.sign(address, [PLAIN]) == await LocalKeys.from_hex([secret]).sign(address, [PLAIN])
    await ring.aclose()


async def test_a_ring_may_be_empty() -> None:
    ring = await load_keys()
    assert not ring.addresses()
    with pytest.raises(UnknownSigner, match="no key is configured"):
        await ring.sign(ADDRESSES[0], [PLAIN])


async def test_two_sources_with_the_same_key_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"two key sources contain the key of {ADDRESSES[0]}"):
        await load_keys(private_keys=SECRETS[:1], key_file=private_file(tmp_path / "keys", SECRETS[0]))


async def test_a_keystore_requires_a_password_file_and_vice_versa(
    directory: Path, password_file: Path
) -> None:
    with pytest.raises(SettingError, match="or neither"):
        await load_keys(keystore_dir=directory)
    with pytest.raises(SettingError, match="or neither"):
        await load_keys(password_file=password_file)


def test_only_local_keys_sign_synchronously() -> None:
    class AsyncOnlyKeys(LocalKeys):
        signs_locally = RemoteKeys.signs_locally

    ring = KeyRing([LocalKeys.from_hex(SECRETS[:1]), AsyncOnlyKeys.from_hex(SECRETS[1:2])])
    assert [ring.signs_locally(address) for address in ADDRESSES] == [True, False, False]
