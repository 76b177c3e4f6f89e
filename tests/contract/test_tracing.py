"""The parts of tracing alone: the header, the settings, the bounded queue, and what is loaded while it is off."""

import re
import subprocess
import sys

import pytest
import yaml

from switchyard.adapters.otlp.tracer import OtlpTracer
from switchyard.domain.errors import SettingError
from switchyard.entrypoints.http.entry_spans import OPERATIONS, route_of
from switchyard.settings.tracing import TracingSettings, tracing_of
from switchyard.telemetry.metrics import Metrics
from switchyard.telemetry.traces import child_span, current_traceparent, entered, parse_traceparent
from tests.support.ports import free_port
from tests.support.process import ROOT

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ON = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318/"}


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
        (f"00-{TRACE}-{SPAN}-01-what-comes-later", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("", None),
    ],
)
def test_a_traceparent_is_read_as_w3c_says(text: str, sampled: bool | None) -> None:
    parts = parse_traceparent(text)
    assert (None if parts is None else parts) == (None if sampled is None else (TRACE, SPAN, sampled))


def test_traces_are_off_without_a_collector_and_empty_variables_count_as_unset() -> None:
    assert tracing_of({}) is None
    assert tracing_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_TRACES_SAMPLER": "bad"}) is None
    assert tracing_of({**ON, "OTEL_SDK_DISABLED": "true", "OTEL_TRACES_SAMPLER": "bad"}) is None
    on = tracing_of({**ON, "OTEL_SERVICE_NAME": "", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b, y=z"})
    assert on is not None
    assert (on.url, on.service_name) == ("http://127.0.0.1:4318/v1/traces", "switchyard")
    assert on.headers == (("x-key", "a b"), ("y", "z"))
    whole = tracing_of({**ON, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/traces"})
    assert whole is not None and whole.url == "https://collector/traces"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:password@collector"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no-sign"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=value"),
        ("OTEL_TRACES_SAMPLER", "always"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
        ("OTEL_SDK_DISABLED", "perhaps"),
    ],
)
def test_a_bad_setting_is_rejected_by_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name):
        tracing_of({**ON, name: value})


def settings(**names: str) -> TracingSettings:
    found = tracing_of({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", **names})
    assert found is not None
    return found


async def test_a_span_that_finds_the_queue_full_or_the_collector_away_is_counted_and_never_waits() -> None:
    metrics = Metrics()

    def dropped(reason: str) -> float | None:
        return metrics.registry.get_sample_value("traces_spans_dropped_total", {"reason": reason})

    tracer = OtlpTracer(settings(OTEL_BSP_MAX_QUEUE_SIZE="3", OTEL_EXPORTER_OTLP_TIMEOUT="100"), "up", metrics.traces)
    for number in range(5):
        tracer.entry(f"request {number}", None).end()
    assert (dropped("queue_full"), dropped("export_failed")) == (2, 0)
    tracer.start()
    await tracer.close()
    assert sum(filter(None, (dropped("export_failed"), dropped("stopped")))) == 3
    tracer.entry("late", None).end()
    assert dropped("stopped") in (1, 4)


def test_spans_are_made_under_a_recorded_trace_only() -> None:
    tracer = OtlpTracer(settings(), "up", Metrics().traces)
    with child_span(tracer, "no trace") as span:
        assert span is None and current_traceparent() is None
    unsampled = tracer.entry("request", f"00-{TRACE}-{SPAN}-00")
    with entered(unsampled), child_span(tracer, "not recorded") as span:
        assert span is None
    with child_span(tracer, "stored by somebody else", parent="nonsense") as span:
        assert span is not None and span.traceparent is None
    with child_span(tracer, "recorded", parent=f"00-{TRACE}-{SPAN}-01") as span:
        assert span is not None and current_traceparent() == span.traceparent
        parts = parse_traceparent(span.traceparent or "")
        assert parts is not None and parts.trace_id == TRACE and parts.span_id != SPAN


def test_the_sdk_is_not_loaded_while_traces_are_off() -> None:
    program = (
        "import sys; import switchyard.bootstrap, switchyard.entrypoints.http.app, switchyard.entrypoints.cli.main; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_every_entry_span_is_of_a_route_of_the_contract_and_on_the_page() -> None:
    contract = yaml.safe_load((ROOT / "contracts" / "openapi.yaml").read_text("utf-8"))
    routes = {
        (method.upper(), re.sub(r"{\w+}", "{}", path)) for path, item in contract["paths"].items() for method in item
    }
    page = (ROOT / "docs" / "reference" / "traces.md").read_text("utf-8")
    for (method, route), name in OPERATIONS.items():
        assert (method, re.sub(r"{\w+}", "{}", route)) in routes, route
        assert f"`{name}`" in page, name
    assert route_of("PATCH", "/orders/ord_1") == "/orders/{order_id}"
    assert route_of("POST", "/orders/ord_1/cancel") == "/orders/{order_id}/cancel"
    assert route_of("GET", "/orders/ord_1") is route_of("POST", "/orders/ord_1/more/cancel") is None
