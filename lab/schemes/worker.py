"""A process that allocates nonces with every scheme and prints each, one per line, until it is killed.

`python -m lab.schemes.worker` reads FENCEPOST_LAB_WORKER from its environment: the signers by scheme, how a scheme is
opened, DSN and Redis URL as JSON. A line is scheme, nonce and token.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from fencepost.domain.ids import Address, Signer
from lab.schemes.load import HOLD_S, STEADY_PAUSE_S
from lab.schemes.testbed import CHAIN_ID, ServerAddresses, open_scheme

VARIABLE = "FENCEPOST_LAB_WORKER"
MAX_SECONDS = 60.0


async def work() -> None:
    config = json.loads(os.environ[VARIABLE])
    async with asyncio.TaskGroup() as group:
        for scheme, address in config["signers"].items():
            group.create_task(_ask(scheme, Signer(CHAIN_ID, Address(address)), config))


async def _ask(scheme: str, signer: Signer, config: dict[str, Any]) -> None:
    servers = ServerAddresses(config["dsn"], config["redis_url"])
    async with open_scheme(scheme, servers, **config["opened_with"]) as opened:
        for _ in range(int(MAX_SECONDS / STEADY_PAUSE_S)):
            for hold in await opened.port.allocate(signer, hold_for_s=HOLD_S):
                sys.stdout.write(f"{scheme} {hold.nonce} {hold.token.hex}\n")
            sys.stdout.flush()
            await asyncio.sleep(STEADY_PAUSE_S)


if __name__ == "__main__":
    asyncio.run(work())
