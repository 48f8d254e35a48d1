"""Read a signer's nonces from endpoints whose identity is checked, for decisions that move or begin a cursor.

A gateway that is re-pointed to another chain keeps its connections, so a nonce may be another chain's. A check of the
identity (`Chain.check_identity`) that succeeds says that the endpoints in use serve this chain now. It says nothing about
a moment before: the endpoint may have been pointed back, or another caller's check may have taken it out of use.

So a nonce is used in one of two cases
- It was the same before and after a check.
- It was read between two checks that succeeded. That serves an account whose nonces move all the time.
"""

from __future__ import annotations

from typing import NamedTuple

from fencepost.application.lane import Lane


class Nonces(NamedTuple):
    latest: int
    pending: int  # never below `latest`


async def verified_nonces(lane: Lane) -> Nonces:
    """Return the signer's nonces on this chain.

    Raise `WrongChain` if an endpoint in use serves another chain, and `RpcUnavailable` if none answers.
    """
    first = await read_nonces(lane)
    await lane.ports.chain.check_identity()
    again = await lane.ports.chain.nonce(lane.signer.address, "pending")
    if first.latest == first.pending == again:
        return first
    between = await read_nonces(lane)
    await lane.ports.chain.check_identity()
    return between


async def read_nonces(lane: Lane) -> Nonces:
    """Return the nonces as the endpoints give them; the next read may show that they are another chain's."""
    address = lane.signer.address
    latest = await lane.ports.chain.nonce(address, "latest")
    return Nonces(latest, max(latest, await lane.ports.chain.nonce(address, "pending")))
