"""A build as OpenTelemetry spans and metrics: only with its API, the application owns the SDK.

Names and attributes are those of the semantic conventions for generative AI.
"""

from __future__ import annotations

import importlib
import json
import random
import time
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from . import events

if TYPE_CHECKING:
    from collections.abc import Iterable

# The conventions' own boundaries for durations, in seconds, and for tokens.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
_OPERATIONS = {"chat": "chat", "embedding": "embeddings", "image": "generate_content"}


class Telemetry:
    """A reader of events: a span for the build and for a share of the model calls, and metrics of all calls."""

    wants_calls = True
    wants_ready = False

    def __init__(self, *, sample: float = 0.05, prompts: bool = False) -> None:
        """`sample` is the share of calls that get a span. `prompts` adds the text of their messages and answers."""
        if not 0 <= sample <= 1:
            raise ConfigError(f"sample must be a number from 0 to 1, not {sample!r}")
        try:
            self._trace: Any = importlib.import_module("opentelemetry.trace")
            metrics: Any = importlib.import_module("opentelemetry.metrics")
        except ImportError as error:
            raise ConfigError(f"telemetry needs the OpenTelemetry API ({error}): install seedbed[otel]") from error
        self.wants_prompts = prompts
        self._sample = sample
        self._rng = random.Random()  # which calls have spans changes nothing of a dataset
        self._tracer = self._trace.get_tracer("seedbed")
        meter = metrics.get_meter("seedbed")
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="Duration of a model call.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of a model call.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._rows = meter.create_counter("seedbed.rows", unit="{row}", description="Rows by outcome.")
        self._attempts = meter.create_counter("seedbed.attempts", unit="{attempt}", description="Attempts by status.")
        self._build: Any = None

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.BuildStarted():
                self._build = self._tracer.start_span(
                    "seedbed.build",
                    attributes={"seedbed.rows.requested": event.rows, "seedbed.columns": list(event.columns)},
                )
            case events.CallFinished():
                self._call(event)
            case events.TaskFinished():
                self._attempts.add(1, {"seedbed.column": event.column, "seedbed.status": event.status})
            case events.RowGroupFinished():
                self._rows.add(event.rows, {"seedbed.outcome": "written"})
                self._rows.add(event.dropped, {"seedbed.outcome": "dropped"})
            case events.BuildFinished():
                self._end(event)

    def _call(self, event: events.CallFinished) -> None:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": _OPERATIONS.get(event.operation, event.operation),
            "gen_ai.provider.name": event.provider,
            "gen_ai.request.model": event.model,
        }
        if event.address is not None:
            attributes["server.address"] = event.address
        if event.error is not None:
            attributes["error.type"] = event.error
        self._duration.record(event.seconds, attributes)
        for kind, count in (("input", event.input_tokens), ("output", event.output_tokens)):
            if count:
                self._tokens.record(count, {**attributes, "gen_ai.token.type": kind})
        if self._build is None or self._rng.random() >= self._sample:
            return
        ended = time.time_ns()
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {event.model}",
            context=self._trace.set_span_in_context(self._build),
            kind=self._trace.SpanKind.CLIENT,
            start_time=ended - int(event.seconds * 1e9),
            attributes={
                **attributes,
                "gen_ai.usage.input_tokens": event.input_tokens,
                "gen_ai.usage.output_tokens": event.output_tokens,
                "seedbed.column": event.column,
                **({} if event.row is None else {"seedbed.row": event.row}),
                **({"gen_ai.input.messages": _shown(event.messages)} if event.messages else {}),
                **({"gen_ai.output.messages": _shown([("assistant", event.answer)])} if event.answer else {}),
            },
        )
        if event.error is not None:
            span.set_status(self._trace.StatusCode.ERROR, event.error)
        span.end(ended)

    def _end(self, event: events.BuildFinished) -> None:
        if self._build is None:
            return
        self._build.set_attributes({"seedbed.rows.written": event.rows, "seedbed.rows.dropped": event.dropped})
        if event.error is not None:
            self._build.set_status(self._trace.StatusCode.ERROR, event.error)
        self._build.end()
        self._build = None

    def close(self) -> None:
        """End the span of a build that was cancelled, which emits no last event."""
        if self._build is not None:
            self._build.set_status(self._trace.StatusCode.ERROR, "cancelled")
            self._build.end()
            self._build = None


def _shown(messages: Iterable[tuple[str, str]]) -> str:
    """Messages in the form of the conventions, as JSON."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in messages])
