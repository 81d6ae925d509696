"""Counters of a server, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from aveyb_retrieval.server.context import context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from aveyb_retrieval.server.indexes import Indexes

_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BUCKETS_QUERIES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "aveyb_requests",
            "Requests that were answered.",
            ("route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "aveyb_request_seconds",
            "From the arrival of a request to the end of its answer.",
            ("route",),
            buckets=_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self.running = Gauge(
            "aveyb_running_requests", "Requests without an answer yet.", registry=self.registry
        )
        self.batches = Histogram(
            "aveyb_query_batch_size",
            "Queries that were encoded together.",
            buckets=_BUCKETS_QUERIES,
            registry=self.registry,
        )

    def watch(self, indexes: Indexes) -> None:
        """Also report the state of the indexes at each scrape."""
        self._indexes = indexes
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the sizes of the indexes, and which of them cannot follow their newest version."""
        documents = GaugeMetricFamily(
            "aveyb_index_documents", "Documents of an index.", labels=("index", "version")
        )
        failing = GaugeMetricFamily(
            "aveyb_index_follow_failing",
            "1 while the newest version of an index cannot be opened.",
            labels=("index",),
        )
        for name, retriever in self._indexes.retrievers.items():
            documents.add_metric((name, retriever.version), len(retriever))
            failing.add_metric((name,), float(name in self._indexes.failures))
        yield documents
        yield failing


async def metrics(request: Request) -> Response:
    """Answer a scrape."""
    return Response(
        generate_latest(context(request).metrics.registry), media_type=CONTENT_TYPE_LATEST
    )
