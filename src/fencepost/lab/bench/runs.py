"""Which figures there are, in the order of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fencepost.errors import FencepostError
from fencepost.lab.bench import end_to_end, responsiveness, scale, throughput
from fencepost.lab.bench.report import Figure
from fencepost.lab.bench.stage import Stage, open_stage
from fencepost.lab.machine import machine

FIGURES: dict[str, Callable[[Stage], Awaitable[list[Figure]]]] = {
    "accept": throughput.accept,
    "end-to-end": end_to_end.end_to_end,
    "ceiling": throughput.ceiling,
    "latency": responsiveness.latency,
    "strict": responsiveness.strict,
    "hot-signer": scale.hot_signer,
    "growth-signers": scale.growth_of_signers,
    "growth-rows": scale.growth_of_rows,
    "nodes": scale.nodes,
    "idle": scale.idle,
    "memory": scale.memory,
}


# A first answer within a minute.
QUICK = ("accept", "end-to-end", "ceiling", "latency", "hot-signer")

_LIMIT_S = {True: 60, False: 400}  # of one figure, by quick


async def run(
    names: Sequence[str],
    *,
    quick: bool,
    on_start: Callable[[str], None],
    on_figures: Callable[[list[Figure]], None],
    on_failure: Callable[[str, str], None],
) -> dict[str, str]:
    """All the figures asked for, one after the other; gives what they were measured on.

    One that can't be measured in time is told as such, and the others go on.
    """
    async with open_stage(quick=quick) as stage:
        facts = machine(postgresql=str(await stage.version()), anvil=await stage.anvil_version())
        for name in names:
            on_start(name)
            try:
                async with asyncio.timeout(_LIMIT_S[quick]):
                    on_figures(await FIGURES[name](stage))
            except TimeoutError:
                on_failure(name, f"not measured within {_LIMIT_S[quick]} s")
            except (FencepostError, OSError) as error:
                on_failure(name, str(error))
            except ExceptionGroup as several:  # of what ran side by side
                if several.split((FencepostError, OSError))[1] is not None:
                    raise
                on_failure(name, _first_cause(several))
    return facts


def _first_cause(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error)
