"""Metrics in Prometheus' text format, and a reader of events that serves those of a running build on loopback."""

from __future__ import annotations

import bisect
import math
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from ..errors import ConfigError
from . import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Label = tuple[str, str]
# A metric's name and labels: its value.
Samples = dict[tuple[str, tuple[Label, ...]], float]


class Metrics:
    """The metrics of one process, changed by its methods."""

    def __init__(self, help: Mapping[str, tuple[str, str]], buckets: Sequence[float] = ()) -> None:  # noqa: A002
        self.help = help
        self.samples: Samples = {}
        self._buckets = buckets

    def add(self, name: str, *labels: Label, by: float = 1) -> None:
        key = name, labels
        self.samples[key] = self.samples.get(key, 0.0) + by

    def set(self, name: str, value: float, *labels: Label) -> None:
        self.samples[name, labels] = value

    def observe(self, name: str, value: float, *labels: Label) -> None:
        """Count a value in a histogram."""
        for bound in self._buckets[bisect.bisect_left(self._buckets, value) :]:
            self.add(f"{name}_bucket", *labels, ("le", str(bound)))
        self.add(f"{name}_bucket", *labels, ("le", "+Inf"))
        self.add(f"{name}_sum", *labels, by=value)
        self.add(f"{name}_count", *labels)


def exposition(help: Mapping[str, tuple[str, str]], samples: Mapping[tuple[str, tuple[Label, ...]], float]) -> str:  # noqa: A002
    """The samples in Prometheus' text format, in the order of `help`."""
    lines: list[str] = []
    for metric, (kind, text) in help.items():
        names = (metric,) if kind != "histogram" else tuple(f"{metric}_{part}" for part in ("bucket", "sum", "count"))
        rows = [(name, labels, value) for (name, labels), value in samples.items() if name in names]
        if rows:
            lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
            lines += [f"{name}{_shown(labels)} {value:.17g}" for name, labels, value in sorted(rows, key=_order)]
    return "\n".join(lines) + "\n"


def _order(row: tuple[str, tuple[Label, ...], float]) -> tuple[str, tuple[Label, ...], float]:
    """Buckets of a histogram are in the order of their bounds, as its readers expect."""
    name, labels, _ = row
    bound = next((math.inf if text == "+Inf" else float(text) for key, text in labels if key == "le"), 0.0)
    return name, tuple(label for label in labels if label[0] != "le"), bound


def _shown(labels: Iterable[Label]) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{{{shown}}}" if shown else ""


def _escaped(text: str) -> str:
    # Not as JSON: readers of the format know these three escapes and reject lines with others.
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# Of a build.

_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
_HELP: Final[Mapping[str, tuple[str, str]]] = {
    "seedbed_rows_requested": ("gauge", "Rows that were requested."),
    "seedbed_rows_written_total": ("counter", "Rows on disk, by this run."),
    "seedbed_rows_dropped_total": ("counter", "Rows that failed for good, by column."),
    "seedbed_cells_total": ("counter", "Attempts of cells and columns, by column and status."),
    "seedbed_calls_total": ("counter", "Calls of models, by model and error, which is empty for an answer."),
    "seedbed_call_seconds": ("histogram", "Seconds from the request to the answer of a model."),
    "seedbed_tokens_total": ("counter", "Tokens by model and type: input, cached (of the input) or output."),
    "seedbed_cost_total": ("counter", "Cost by model, in the unit of its prices."),
    "seedbed_throttle_limit": ("gauge", "Calls that a throttle key allows at once; 0 during a pause."),
}
# A request for metrics is short; what is longer is none.
_LONGEST_REQUEST = 8_192
_PATIENCE = 10.0


class BuildMetrics:
    """A reader of events that serves them at `http://127.0.0.1:PORT/metrics` while the build runs."""

    wants_calls = True
    wants_ready = False

    def __init__(self, port: int) -> None:
        """Open the port; `ConfigError` if it is taken. With 0 the system chooses one, which is then in `port`."""
        self._metrics = Metrics(_HELP, _BUCKETS)
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(16)
        except (OSError, OverflowError, TypeError) as error:
            self._socket.close()
            raise ConfigError(f"metrics cannot be served at port {port!r}: {error}") from error
        self.port = int(self._socket.getsockname()[1])
        self._scope: trio.CancelScope | None = None

    def text(self) -> str:
        """The metrics as Prometheus reads them."""
        return exposition(_HELP, self._metrics.samples)

    def __call__(self, event: events.Event) -> None:
        metrics = self._metrics
        match event:
            case events.BuildStarted():
                metrics.set("seedbed_rows_requested", event.rows)
                for key, limit in event.limits.items():
                    metrics.set("seedbed_throttle_limit", limit, ("key", key))
                self._scope = trio.CancelScope()  # which `close` may cancel before the task runs
                trio.lowlevel.spawn_system_task(self._serve, self._scope)
            case events.TaskFinished():
                metrics.add("seedbed_cells_total", ("column", event.column), ("status", event.status))
            case events.CallFinished():
                model = ("model", event.alias)
                metrics.add("seedbed_calls_total", model, ("error", event.error or ""))
                metrics.observe("seedbed_call_seconds", event.seconds, model)
                for kind, count in (
                    ("input", event.input_tokens),
                    ("cached", event.cached_tokens),
                    ("output", event.output_tokens),
                ):
                    if count:
                        metrics.add("seedbed_tokens_total", model, ("type", kind), by=count)
                if event.cost:
                    metrics.add("seedbed_cost_total", model, by=event.cost)
            case events.RowGroupFinished():
                metrics.add("seedbed_rows_written_total", by=event.rows)
            case events.RowDropped():
                metrics.add("seedbed_rows_dropped_total", ("column", event.column))
            case events.ThrottleChanged():
                metrics.set("seedbed_throttle_limit", event.limit, ("key", event.key))
            case events.BuildFinished():
                self.close()

    def close(self) -> None:
        """Close the port; a run that is cancelled emits no last event."""
        if self._scope is None:
            self._socket.close()
        else:
            self._scope.cancel(reason="the build has ended")

    async def _serve(self, scope: trio.CancelScope) -> None:
        self._socket.setblocking(False)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._socket))
        with scope:
            async with listener:
                await trio.serve_listeners(self._answer, [listener])

    async def _answer(self, stream: trio.SocketStream) -> None:
        request = b""
        async with stream:
            with trio.move_on_after(_PATIENCE), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while b"\r\n\r\n" not in request and len(request) < _LONGEST_REQUEST:
                    received = await stream.receive_some()
                    if not received:
                        return
                    request += received
                is_known = request.split(b" ", 2)[:2] == [b"GET", b"/metrics"]
                status, text = ("200 OK", self.text()) if is_known else ("404 Not Found", "GET /metrics\n")
                body = text.encode("utf-8", "replace")
                head = (
                    f"HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                )
                await stream.send_all(head.encode("ascii") + body)
