"""What Prometheus is told, under the field's names. Counters are read where they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.protocol.errors import BackendError
from outrider.protocol.queue import need
from outrider.protocol.session import CloudSession
from outrider.runtime.extras import hint

if TYPE_CHECKING:
    from outrider.cloud_server.driver import Verifier
    from outrider.cloud_server.engine import Forward
    from outrider.runtime.net.server import Server

PREFIX = "outrider:"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class _Seen:
    """Of an answer under way: which, when its last token came, and how long the text was."""

    begun: int
    at: float
    length: int


class CloudMetrics:
    """Histograms of what passes bring, and a collector of the counters of everybody else."""

    def __init__(self, verifier: Verifier, server: Server) -> None:
        """Raises BackendError where the library is missing."""
        try:
            import prometheus_client as library
        except ImportError as error:
            raise BackendError(
                f"metrics need prometheus-client: {hint('cloud')} or {hint('cloud-llama')}"
            ) from error
        self._library: Any = library
        self._verifier, self._server = verifier, server
        self._seen: dict[bytes, _Seen] = {}
        self.registry = library.CollectorRegistry()
        library.ProcessCollector(registry=self.registry)
        self._first = self._histogram("time_to_first_token_seconds", "from open to first token")
        self._gap = self._histogram("inter_token_latency_seconds", "seconds a token after it")
        self._whole = self._histogram("e2e_request_latency_seconds", "from open to the end")
        self._verify = self._histogram("verify_seconds", "passes of the target")
        self._queue = self._histogram("verify_queue_seconds", "guesses before their pass")
        self.registry.register(self)

    def _histogram(self, name: str, about: str) -> Any:
        return self._library.Histogram(
            PREFIX + name, about, buckets=_SECONDS, registry=self.registry
        )

    def passed(self, work: Forward, now: float) -> None:
        """A pass is over and its tokens are committed."""
        if not work.known:
            self._verify.observe(now - work.started)
        for item in work.items:
            session = item.session
            if session.begun != item.begun:
                continue
            self._queue.observe(session.queue_time)
            tokens = len(session.ids) - item.length
            if tokens > 0:
                self._tokens(session, tokens, now)
            if not session.running:
                self._whole.observe(now - session.opened_at)
                self._seen.pop(session.key, None)
        if len(self._seen) > 2 * len(self._verifier.table.sessions) + 64:
            alive = self._verifier.table.sessions
            self._seen = {key: seen for key, seen in self._seen.items() if key in alive}

    def _tokens(self, session: CloudSession, tokens: int, now: float) -> None:
        seen = self._seen.get(session.key)
        if seen is None or seen.begun != session.begun:
            self._first.observe(now - session.opened_at)
        else:
            gap = (now - seen.at) / tokens
            for _ in range(tokens):
                self._gap.observe(gap)
        self._seen[session.key] = _Seen(session.begun, now, len(session.ids))

    def page(self) -> tuple[str, str]:
        """Content type and text for ``/metrics``."""
        text = self._library.generate_latest(self.registry).decode()
        return self._library.CONTENT_TYPE_LATEST, text

    def collect(self) -> Iterator[Any]:
        """Called by the library for each scrape."""
        counter, gauge = self._counter, self._gauge
        stats, table = self._verifier.engine.stats, self._verifier.table
        yield counter("spec_decode_num_drafts", stats.num_drafts, "edges' drafts judged")
        yield counter("spec_decode_num_draft_tokens", stats.num_draft_tokens, "guesses in them")
        yield counter("spec_decode_num_accepted_tokens", stats.num_accepted_tokens, "right ones")
        family = self._library.metrics_core.CounterMetricFamily(
            PREFIX + "spec_decode_num_accepted_tokens_per_pos",
            "right guesses by their place in the draft",
            labels=["position"],
        )
        for position, count in enumerate(stats.accepted_per_position):
            family.add_metric([str(position)], count)
        yield family
        yield counter("own_draft_tokens", stats.own_draft_tokens, "the verifier's own guesses")
        yield counter("own_accepted_tokens", stats.own_accepted_tokens, "right ones of them")
        yield counter("passes", stats.passes, "passes of the target")
        yield counter("pass_failures", stats.failures, "passes that failed")
        yield counter("prompt_tokens", stats.prompt_tokens, "prompt ids of answers")
        yield counter("cached_prompt_tokens", stats.cached_prompt_tokens, "not evaluated again")
        yield counter("generation_tokens", stats.tokens, "tokens of answers")
        yield self._labelled("requests_refused", "code", table.refused, "answers refused")
        yield self._labelled(
            "connections_refused", "reason", self._server.refused, "connections refused"
        )
        into, out = self._server.traffic
        yield counter("uplink_bytes", into, "from edges, framing included")
        yield counter("downlink_bytes", out, "to edges, framing included")
        running, waiting = counts(self._verifier)
        yield gauge("num_requests_running", running, "answers being worked on")
        yield gauge("num_requests_waiting", waiting, "answers that wait for a slot")
        yield gauge("sessions_active", len(table.sessions), "sessions, idle ones included")
        yield gauge("connections", self._server.connections, "open links")
        yield gauge("kv_cache_usage_perc", reserved(self._verifier), "share of the cache promised")

    def _counter(self, name: str, value: float, about: str) -> Any:
        return self._library.metrics_core.CounterMetricFamily(PREFIX + name, about, value=value)

    def _gauge(self, name: str, value: float, about: str) -> Any:
        return self._library.metrics_core.GaugeMetricFamily(PREFIX + name, about, value=value)

    def _labelled(self, name: str, label: str, values: Any, about: str) -> Any:
        family = self._library.metrics_core.CounterMetricFamily(
            PREFIX + name, about, labels=[label]
        )
        for which, value in sorted(values.items()):
            family.add_metric([which], value)
        return family


def counts(verifier: Verifier) -> tuple[int, int]:
    """Answers being worked on, and answers that wait."""
    table = verifier.table
    running = sum(1 for session in table.sessions.values() if session.active)
    return running, table.queue.waiting(table.sessions.values())


def reserved(verifier: Verifier) -> float:
    """The share of the cache that answers being worked on can come to need, 0 to 1."""
    capacity = verifier.table.config.capacity
    if capacity is None:
        return 0.0
    ids = sum(need(s, capacity.n_ctx) for s in verifier.table.sessions.values() if s.active)
    return min(1.0, ids / capacity.ids)
