"""Counters for Prometheus, under the names of the field. Rates are the dashboard's to divide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider.edge_client.answer import Answer

if TYPE_CHECKING:
    from outrider.edge_client.client import EdgeClient

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


class Metrics:
    """What this endpoint did since it started."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"outrider:{name}", about, labels, registry=self.registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"outrider:{name}", about, registry=self.registry)

        def seconds(name: str, about: str) -> Histogram:
            return Histogram(f"outrider:{name}", about, registry=self.registry, buckets=SECONDS)

        self.drafts = counter("spec_decode_num_drafts", "Frames with guesses")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Guesses sent")
        self.accepted = counter("spec_decode_num_accepted_tokens", "Guesses that were right")
        self.prompt = counter("prompt_tokens", "Prompt tokens of all answers")
        self.cached = counter(
            "cached_prompt_tokens", "Of these, what the cloud had evaluated already"
        )
        self.generated = counter("generation_tokens", "Tokens of all answers")
        self.passes = counter("target_passes", "Passes of the target for these answers")
        self.up = counter("uplink_bytes", "Draft frames, WebSocket framing included")
        self.down = counter("downlink_bytes", "Verdicts, WebSocket framing included")
        self.reconnects = counter("reconnects", "Links made again in mid answer")
        self.fallback = counter("fallback", "Answers without a draft, by reason", "reason")
        self.responses = counter("http_responses", "Responses by route and status", "route", "code")
        self.cancelled = counter("cancelled_answers", "Answers whose client left")
        self.running = gauge("num_requests_running", "Answers under way")
        self.waiting = gauge("num_requests_waiting", "Answers that wait for a place")
        self.sessions = gauge("sessions_active", "Sessions open at the cloud, idle ones included")
        self.rtt = gauge("rtt_seconds", "Smoothed round trip to the cloud")
        self.first = seconds("time_to_first_token_seconds", "From the request to its first token")
        self.between = seconds("inter_token_latency_seconds", "Mean of an answer, after the first")
        self.whole = seconds("e2e_request_latency_seconds", "From the request to the end")
        self.length = Histogram(
            "outrider:draft_length", "Frames as planned", registry=self.registry, buckets=LENGTHS
        )

    def answered(self, answer: Answer, fallback: str | None) -> None:
        """Count one answer that came to its end."""
        tokens = len(answer.ids)
        self.drafts.inc(answer.frames)
        self.draft_tokens.inc(answer.drafted)
        self.accepted.inc(answer.accepted)
        self.prompt.inc(len(answer.prompt_ids))
        self.cached.inc(answer.cached)
        self.generated.inc(tokens)
        self.passes.inc(answer.passes or 0)
        self.up.inc(answer.bytes_up)
        self.down.inc(answer.bytes_down)
        self.reconnects.inc(answer.reconnects)
        if fallback is not None:
            self.fallback.labels(fallback).inc()
        if answer.first_token is not None:
            self.first.observe(answer.first_token)
            if tokens > 1:
                self.between.observe((answer.seconds - answer.first_token) / (tokens - 1))
        self.whole.observe(answer.seconds)

    def text(self, client: EdgeClient | None) -> bytes:
        """The exposition."""
        if client is not None:
            self.rtt.set(client.machine.link.srtt or 0.0)
            self.sessions.set(len(client.machine.sessions))
        return generate_latest(self.registry)
