"""Provide a histogram that is cheap to feed: an observation costs a bisection, the rest is done when it is scraped.

The histogram of `prometheus_client` visits its buckets one by one and takes a lock per value, which costs ten times as
much. Only the thread that runs the node may use this one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class _Series:
    """Hold the counts and the sum of one set of labels."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # the last bucket is for values above all bounds
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: tuple[str, ...]) -> None:
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        family.add_metric(labels, buckets, self._sum)


class Histogram(Collector):
    """Collect observations per set of labels.

    `histogram[labels]` is the series of these labels and is created on first use. A histogram without labels has its
    series from the start.
    """

    def __init__(
        self,
        name: str,
        doc: str,
        bounds: tuple[float, ...],
        labels: tuple[str, ...],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._doc, self._bounds, self._labels = name, doc, bounds, labels
        self._series: dict[tuple[str, ...], _Series] = {} if labels else {(): _Series(bounds)}
        registry.register(self)

    def __getitem__(self, labels: tuple[str, ...]) -> _Series:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(self._bounds)
        return series

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Return all series for `prometheus_client`."""
        family = HistogramMetricFamily(self._name, self._doc, labels=self._labels)
        for labels, series in self._series.items():
            series.add_to(family, labels)
        return [family]
