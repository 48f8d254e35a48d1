"""Count waiting transactions and commands in the database at intervals.

The sample feeds admission control, the metrics, and the lanes that missed a hint. Wake-ups are hints and may get lost;
the sample is the truth for the signers that this node holds (`LeaseAcquirer` finds the free ones). Sampling takes at
most a fiftieth of the time: the longer a sample takes, the rarer it is taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fencepost.application.admission import AdmissionControl, ClusterSample, Sample
from fencepost.application.ports import Clock
from fencepost.runtime.metrics import Metrics

SAMPLE_INTERVAL_S = 1.0
CLUSTER_SAMPLE_INTERVAL_S = 5.0
MIN_IDLE_PER_WORK = 50.0


@dataclass(frozen=True, slots=True)
class QueueSampler:
    """Take samples, and pass each on."""

    take: Callable[[], Awaitable[Sample]]
    clock: Clock
    admission: AdmissionControl
    metrics: Metrics
    on_sample: Callable[[Sample], None]

    async def turn(self) -> float:
        """Take one sample, and return the seconds until the next one."""
        started_s = self.clock.now_s()
        sample = await self.take()
        took_s = self.clock.now_s() - started_s
        self.admission.apply_sample(sample)
        self.metrics.sampled(sample.counts)
        self.on_sample(sample)
        return max(SAMPLE_INTERVAL_S, took_s * MIN_IDLE_PER_WORK)


@dataclass(frozen=True, slots=True)
class ClusterSampler:
    """Sample what alerts are made of: states of signers, sub-states, ages, missing leases."""

    take: Callable[[], Awaitable[ClusterSample]]
    clock: Clock
    metrics: Metrics

    async def turn(self) -> float:
        """Take one sample, and return the seconds until the next one."""
        started_s = self.clock.now_s()
        self.metrics.cluster_sampled(await self.take())
        return max(CLUSTER_SAMPLE_INTERVAL_S, (self.clock.now_s() - started_s) * MIN_IDLE_PER_WORK)
