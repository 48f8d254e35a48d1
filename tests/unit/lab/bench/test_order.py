"""The bare sender keeps each signer's nonces in order, also across connections."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

from fencepost.adapters.evm.rpc import Calls, JsonRpc
from fencepost.domain.ids import TxHash
from fencepost.domain.transaction import SignedTx
from lab.bench.bare_sender import BATCH_SIZE, OrderedSender

SIGNERS, EACH = 7, 3 * BATCH_SIZE


class SlowNode:
    """Delay each batch by its own time."""

    def __init__(self) -> None:
        self.chance = random.Random(7)
        self.arrived: list[int] = []
        self.under_way = self.most_under_way = 0

    async def batch(self, calls: Calls) -> list[Any]:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)
        numbers = [int(raw[0], 16) for _, raw in calls]
        self.arrived += numbers
        self.under_way -= 1
        return [_hash(number) for number in numbers]


def _hash(number: int) -> TxHash:
    return TxHash(f"0x{number:064x}")


async def test_each_signer_s_nonces_arrive_in_order() -> None:
    node = SlowNode()
    sender = OrderedSender(cast("JsonRpc", node))
    for nonce in range(EACH):
        for signer in range(SIGNERS):
            number = signer * EACH + nonce
            sender.submit(f"signer {signer}", SignedTx(raw=number.to_bytes(4, "big"), hash=_hash(number)))
    sender.close()
    await sender.run()
    for signer in range(SIGNERS):
        of_signer = [number - signer * EACH for number in node.arrived if number // EACH == signer]
        assert of_signer == list(range(EACH))
    assert node.most_under_way > 1  # several batches in parallel, of different signers
