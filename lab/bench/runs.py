"""All figures of the benchmark, in the order of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fencepost.errors import FencepostError
from lab.bench import end_to_end, http_server, responsiveness, scale, throughput
from lab.bench.report import Figure
from lab.bench.testbed import Testbed, open_testbed
from lab.machine import machine

FIGURES: dict[str, Callable[[Testbed], Awaitable[list[Figure]]]] = {
    "accept": throughput.accept,
    "http-server": http_server.http_server,
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


# The main figures, within a minute.
QUICK = ("accept", "end-to-end", "ceiling", "latency", "hot-signer")

_LIMIT_S = {True: 60, False: 400}  # per figure, by quick


async def run(
    names: Sequence[str],
    *,
    quick: bool,
    on_start: Callable[[str], None],
    on_figures: Callable[[list[Figure]], None],
    on_failure: Callable[[str, str], None],
) -> dict[str, str]:
    """Measure the named figures one after the other, and return the facts about the machine.

    A figure that can't be measured in time is reported with `on_failure`, and the others are measured all the same.
    """
    async with open_testbed(quick=quick) as testbed:
        facts = machine(postgresql=str(await testbed.version()), anvil=await testbed.anvil_version())
        for name in names:
            on_start(name)
            try:
                async with asyncio.timeout(_LIMIT_S[quick]):
                    on_figures(await FIGURES[name](testbed))
            except TimeoutError:
                on_failure(name, f"not measured within {_LIMIT_S[quick]} s")
            except (FencepostError, OSError) as error:
                on_failure(name, str(error))
            except ExceptionGroup as several:  # of tasks that ran in parallel
                if several.split((FencepostError, OSError))[1] is not None:
                    raise
                on_failure(name, _first_cause(several))
    return facts


def _first_cause(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error)
