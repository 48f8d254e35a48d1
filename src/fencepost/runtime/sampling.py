"""Now and then the database is counted: for the bounds of the intake, for the figures, and for whoever missed a hint.

Wake-ups are hints and may get lost; what was counted here is the truth that makes up for it, for signers that this node
holds (those that are free are found by seeking). Counting takes at most a fiftieth of the time: the more there is to
count, the rarer it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fencepost.application.intake import Intake, Sample
from fencepost.application.ports import Clock
from fencepost.runtime.metrics import Metrics

EVERY_S = 1.0
REST_PER_WORK = 50.0


@dataclass(frozen=True, slots=True)
class Sampling:
    take: Callable[[], Awaitable[Sample]]
    clock: Clock
    intake: Intake
    metrics: Metrics
    tell: Callable[[Sample], None]  # the node

    async def turn(self) -> float:
        """Seconds until the next one."""
        began_s = self.clock.now_s()
        sample = await self.take()
        took_s = self.clock.now_s() - began_s
        self.intake.sampled(sample)
        self.metrics.sampled(sample.counts)
        self.tell(sample)
        return max(EVERY_S, took_s * REST_PER_WORK)
