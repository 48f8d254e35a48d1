"""Provide in-memory stand-ins for PostgreSQL and the chain, for tests of code that uses Fencepost."""

from fencepost.testing.chain import TRANSFER_GAS, DecodedTx, InMemoryChain, LostResponse
from fencepost.testing.database import InMemoryDatabase
from fencepost.testing.facade import TEST_PRIVATE_KEY, open_fencepost
from fencepost.testing.ledger import InMemoryLedger

__all__ = [
    "TEST_PRIVATE_KEY",
    "TRANSFER_GAS",
    "DecodedTx",
    "InMemoryChain",
    "InMemoryDatabase",
    "InMemoryLedger",
    "LostResponse",
    "open_fencepost",
]
