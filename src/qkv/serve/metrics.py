"""Metrics of the server for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
NO_ANSWER = "499"  # status of a request whose client went away
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.requests = Counter(
            "qkv_requests", "Requests by endpoint and status.", ["endpoint", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "qkv_request_seconds", "Time from a request to the end of its answer.", ["endpoint"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.in_progress = Gauge(
            "qkv_requests_in_progress", "Requests that are being answered.", registry=self.registry
        )
        self.queued = Gauge(
            "qkv_queued_sequences", "Accepted sequences and texts that are not finished.", ["model"],
            registry=self.registry,
        )  # fmt: skip
        self.batch_size = Histogram(
            "qkv_batch_size", "Sequences of each decoding step, and texts of each batch.", ["model"],
            buckets=SIZES, registry=self.registry,
        )  # fmt: skip
        self.prompt_tokens = Counter("qkv_prompt_tokens", "Tokens of prompts.", ["model"], registry=self.registry)
        self.new_tokens = Counter("qkv_new_tokens", "Generated tokens.", ["model"], registry=self.registry)

    @property
    def answered(self) -> tuple[int, int]:
        """Number of requests that were answered, and of those that were not, because the client went away."""
        counts = {True: 0, False: 0}
        for metric in self.requests.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    counts[sample.labels["status"] != NO_ANSWER] += int(sample.value)
        return counts[True], counts[False]

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
