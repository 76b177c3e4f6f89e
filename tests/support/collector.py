"""An OpenTelemetry collector: takes spans by OTLP over HTTP, or behaves badly."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.support.polling import until

Mood = Literal["ok", "error", "hang"]


class Seen(msgspec.Struct, frozen=True):
    """A span as the collector got it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """One of our attributes."""
        return self.attributes.get(f"switchyard.{name}")

    @property
    def role(self) -> str:
        return str(self.resource["switchyard.role"])


class Collector:
    """The spans so far; `mood` is how it answers from now on."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.mood: Mood = "ok"
        self.requests = 0
        self.released = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self.released.set()
        if self._thread.is_alive():
            self.server.shutdown()
            self._thread.join()
            self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def settings(self, **changes: str) -> dict[str, str]:
        """The settings of a process that sends its traces here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50", **changes}

    def take(self, request: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        assert request.path == "/v1/traces", request.path
        assert request.headers["Content-Type"] == "application/x-protobuf"
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if self.mood == "hang":
            self.released.wait()
            return
        if self.mood == "ok":
            content = gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body
            self.spans += _spans(ExportTraceServiceRequest.FromString(content))
        request.send_response(200 if self.mood == "ok" else 500)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def named(self, name: str, trace_id: str | None = None) -> list[Seen]:
        return [span for span in self.spans if span.name == name and trace_id in (None, span.trace_id)]

    def children(self, parent: Seen) -> set[str]:
        """The names of the spans under a span."""
        return {
            span.name for span in self.spans if (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)
        }

    async def one(self, name: str, trace_id: str | None = None, message: Callable[[], str] = str) -> Seen:
        """Wait for the one span of this name."""
        await until(lambda: bool(self.named(name, trace_id)), lambda: f"{name} in {self.spans}\n{message()}")
        [span] = self.named(name, trace_id)
        return span


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that runs until the block ends, unless it was closed before."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Seen]:
    for of_resource in request.resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Seen(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
                    attributes=_attributes(span.attributes),
                    resource=resource,
                )


def _attributes(pairs: "Any") -> dict[str, Any]:
    def value(pair: KeyValue) -> Any:
        return getattr(pair.value, pair.value.WhichOneof("value") or "string_value")

    return {pair.key: value(pair) for pair in pairs}
