"""Which figures there are, in the order of the table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fencepost.lab.bench import responsiveness, scale, throughput
from fencepost.lab.bench.report import Figure, machine
from fencepost.lab.bench.stage import Stage, open_stage

FIGURES: dict[str, Callable[[Stage], Awaitable[list[Figure]]]] = {
    "accept": throughput.accept,
    "end-to-end": throughput.end_to_end,
    "ceiling": throughput.ceiling,
    "latency": responsiveness.latency,
    "strict": responsiveness.strict,
    "hot-signer": scale.hot_signer,
    "growth": scale.growth,
    "nodes": scale.nodes,
    "idle": scale.idle,
    "memory": scale.memory,
}


async def run(
    names: Sequence[str],
    *,
    quick: bool,
    on_start: Callable[[str], None],
    on_figures: Callable[[list[Figure]], None],
) -> dict[str, str]:
    """All the figures asked for, one after the other; gives what they were measured on."""
    async with open_stage(quick=quick) as stage:
        facts = machine(postgresql=str(await stage.version()), anvil="1.7.1")
        for name in names:
            on_start(name)
            on_figures(await FIGURES[name](stage))
    return facts
