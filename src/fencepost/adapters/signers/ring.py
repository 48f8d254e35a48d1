"""Combine all key sources of a node.

A `KeyRing` passes a transaction to the source that holds its signer's key. Two sources with the same address are rejected,
because the choice between them would be arbitrary. `load_keys` opens the configured sources. A node without keys accepts
requests and signs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fencepost.adapters.signers.keyfile import load_key_file
from fencepost.adapters.signers.keystore import load_keystores
from fencepost.adapters.signers.local import LocalKeys
from fencepost.adapters.signers.remote import RemoteKeys
from fencepost.application.ports import KeyPort, ToSign
from fencepost.domain.ids import Address
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.errors import SettingError, UnknownSigner


class KeyRing(KeyPort):
    """Sign with all key sources of a node; `aclose` closes their connections."""

    def __init__(self, sources: Sequence[KeyPort]) -> None:
        self._sources = tuple(sources)
        self._holders: dict[Address, KeyPort] = {}
        for source in self._sources:
            for address in source.addresses():
                if address in self._holders:
                    raise SettingError(f"two key sources contain the key of {address}: remove one")
                self._holders[address] = source

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._holders)})"

    def addresses(self) -> Sequence[Address]:
        return tuple(self._holders)

    def signs_locally(self, address: Address) -> bool:
        holder = self._holders.get(address)
        return holder is not None and holder.signs_locally(address)

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        holder = self._holders.get(address)
        if holder is None:
            raise UnknownSigner(f"no key is configured for {address}")
        return await holder.sign(address, txs)

    async def sign_each(self, wanted: Sequence[ToSign]) -> Sequence[Sequence[SignedTx] | BaseException]:
        holders = {self._holders.get(address) for address, _ in wanted}
        holder = holders.pop() if len(holders) == 1 else None
        return await (super().sign_each(wanted) if holder is None else holder.sign_each(wanted))

    async def aclose(self) -> None:
        for source in self._sources:
            if isinstance(source, RemoteKeys):
                await source.aclose()


async def load_keys(
    *,
    private_keys: Sequence[str] = (),
    key_file: Path | None = None,
    keystore_dir: Path | None = None,
    password_file: Path | None = None,
    remote_url: str | None = None,
) -> KeyRing:
    """Load all keys; raise `SettingError` if a setting is wrong, `Unready` if the signing service does not answer."""
    if (keystore_dir is None) != (password_file is None):
        raise SettingError("set both keys.keystore_dir and keys.keystore_password_file, or neither")
    sources: list[KeyPort] = []
    if private_keys:
        sources.append(LocalKeys.from_hex(private_keys))
    if key_file is not None:
        sources.append(load_key_file(key_file))
    if keystore_dir is not None and password_file is not None:
        sources.append(await load_keystores(keystore_dir, password_file=password_file))
    if remote_url is None:
        return KeyRing(sources)
    remote = await RemoteKeys.connect(remote_url)
    try:
        return KeyRing([*sources, remote])
    except SettingError:
        await remote.aclose()
        raise
