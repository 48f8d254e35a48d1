"""Identify the chain that an endpoint serves: by its id and the hash of its first block.

Contract
- `check` asks over the connection that it is given and raises `WrongChain` for another chain id and `ChainReplaced` for
  another first block. The id must be known before (`chain_id`); while it is 0, nothing is checked.
- The first block that any endpoint returns is passed to `confirm_genesis`, which returns the one that counts: the one
  stored when this chain was first used, or this one if none was stored.
- An endpoint that does not return block 0 is identified by its id alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fencepost.adapters.evm import decoding
from fencepost.adapters.evm.rpc import Ask
from fencepost.domain.ids import BlockHash
from fencepost.errors import ChainReplaced, RpcError, RpcRefused, RpcUnavailable, WrongChain

ConfirmGenesis = Callable[[int, BlockHash], Awaitable[BlockHash]]

_FIRST_BLOCK: Final = ["0x0", False]


async def _accept_genesis(_chain_id: int, genesis: BlockHash) -> BlockHash:
    return genesis


class ChainIdentity:
    def __init__(self, confirm_genesis: ConfirmGenesis = _accept_genesis) -> None:
        self.chain_id = 0  # 0: not decided yet
        self.genesis: BlockHash | None = None  # None: no endpoint has returned it yet
        self._confirm_genesis = confirm_genesis

    async def check(self, endpoint: str, ask: Ask) -> None:
        if not self.chain_id:
            return
        reported = await reported_chain_id(endpoint, ask)
        if reported != self.chain_id:
            raise WrongChain(f"{endpoint} is on chain {reported}, not {self.chain_id}")
        await self.check_genesis(endpoint, ask)

    async def check_genesis(self, endpoint: str, ask: Ask) -> None:
        genesis = await _first_block(ask)
        if genesis is None:
            return
        if self.genesis is None:
            self.genesis = await self._confirm_genesis(self.chain_id, genesis)
        if genesis != self.genesis:
            raise ChainReplaced(
                f"{endpoint} is another chain with the id {self.chain_id}: its first block is {genesis}, but the"
                f" chain in this database starts with {self.genesis}. Set chains.NAME.rpc_urls to an endpoint of that"
                " chain, or use a new database if the chain was started anew"
            )


async def reported_chain_id(endpoint: str, ask: Ask) -> int:
    try:
        return decoding.quantity(await ask("eth_chainId", []), of="chain id")
    except RpcRefused as error:
        raise RpcUnavailable(f"{endpoint}: does not report its chain id: {error}") from error


async def _first_block(ask: Ask) -> BlockHash | None:
    """Return the hash of block 0, or None if the node does not have it or does not answer."""
    try:
        block = await ask("eth_getBlockByNumber", _FIRST_BLOCK)
    except RpcError:
        return None
    if not isinstance(block, dict) or block.get("number") != "0x0":
        return None
    return BlockHash(decoding.hash_text(block.get("hash"), of="block hash"))
