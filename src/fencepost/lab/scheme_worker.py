"""A process that asks for nonces with every scheme and says which it got, one a line, until somebody ends it.

`python -m fencepost.lab.scheme_worker`, with FENCEPOST_LAB_WORKER in the environment: signers by scheme, how a
scheme is opened, DSN and Redis as JSON. A line is scheme, nonce and token.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from fencepost.domain.ids import Address, Signer
from fencepost.lab.scheme_load import HOLD_S, STEADY_PAUSE_S
from fencepost.lab.scheme_stage import CHAIN_ID, Places, open_scheme

VARIABLE = "FENCEPOST_LAB_WORKER"
SECONDS_MAX = 60.0


async def work() -> None:
    told = json.loads(os.environ[VARIABLE])
    async with asyncio.TaskGroup() as group:
        for scheme, address in told["signers"].items():
            group.create_task(_ask(scheme, Signer(CHAIN_ID, Address(address)), told))


async def _ask(scheme: str, signer: Signer, told: dict[str, Any]) -> None:
    places = Places(told["dsn"], told["redis_url"])
    async with open_scheme(scheme, places, **told["opened_with"]) as opened:
        for _ in range(int(SECONDS_MAX / STEADY_PAUSE_S)):
            for hold in await opened.port.allocate(signer, hold_for_s=HOLD_S):
                sys.stdout.write(f"{scheme} {hold.nonce} {hold.token.hex}\n")
            sys.stdout.flush()
            await asyncio.sleep(STEADY_PAUSE_S)


if __name__ == "__main__":
    asyncio.run(work())
