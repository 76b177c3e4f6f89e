"""The settings of traces, under the names of the OpenTelemetry specification. Reads the environment."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import msgspec

from switchyard.settings import parse
from switchyard.settings.parse import Secret, Setting, value_of

PREFIX = "OTEL_"
TRACES_PATH = "/v1/traces"
SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)


def _protocol(value: str) -> str:
    if value != "http/protobuf":
        raise ValueError("must be http/protobuf, the only protocol that is supported")
    return value


def _pairs(value: str) -> str:
    """Pairs of names and values, as `name=value,name=value`, percent-encoded."""
    split_pairs(value)
    return value


def split_pairs(value: str) -> tuple[tuple[str, str], ...]:
    """The decoded pairs."""
    pairs = []
    for each in filter(None, (part.strip() for part in value.split(","))):
        name, sign, text = each.partition("=")
        if not sign or not name.strip() or not (name.strip() + unquote(text)).isprintable():
            raise ValueError("must be name=value pairs separated by commas")
        pairs.append((name.strip(), unquote(text.strip())))
    return tuple(pairs)


TRACING_SETTINGS: tuple[Setting, ...] = (
    Setting("OTEL_EXPORTER_OTLP_ENDPOINT", "base_url", None, parse.server_url("http://localhost:4318"),
            "Collector to which traces are sent, such as `http://localhost:4318`; `/v1/traces` is added. Unset, and "
            "`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` unset too: no traces."),
    Setting("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "traces_url", None, parse.server_url("http://localhost:4318"),
            "The whole address to which traces are sent, in place of the one above."),
    Setting("OTEL_EXPORTER_OTLP_HEADERS", "headers", None, _pairs,
            "Headers of the requests to the collector, as `name=value,name=value`, percent-encoded.", secret=True),
    Setting("OTEL_EXPORTER_OTLP_PROTOCOL", "protocol", "http/protobuf", _protocol,
            "Protocol of the collector; only `http/protobuf`."),
    Setting("OTEL_EXPORTER_OTLP_TIMEOUT", "timeout", "10000", parse.milliseconds(1, 60_000),
            "Milliseconds after which the collector counts as not answering. Spans are then dropped; no order waits."),
    Setting("OTEL_SERVICE_NAME", "service_name", "switchyard", parse.text,
            "`service.name` of all spans. The attribute `switchyard.role` tells the processes apart."),
    Setting("OTEL_RESOURCE_ATTRIBUTES", "attributes", "", _pairs,
            "Further attributes of all spans, as `name=value,name=value`, such as `deployment.environment.name=prod`."),
    Setting("OTEL_TRACES_SAMPLER", "sampler", "parentbased_always_on", parse.choice(*SAMPLERS),
            "Which traces are recorded: `always_on`, `always_off`, `traceidratio`, or `parentbased_always_on`, "
            "`parentbased_always_off`, `parentbased_traceidratio`, where the `traceparent` of the request decides if "
            "it has one."),
    Setting("OTEL_TRACES_SAMPLER_ARG", "ratio", "1", parse.ratio,
            "Share of the traces that `traceidratio` records, from 0 to 1."),
    Setting("OTEL_SDK_DISABLED", "disabled", "false", parse.flag,
            "`true`: no traces, whatever the other settings are."),
    Setting("OTEL_BSP_MAX_QUEUE_SIZE", "queue_capacity", "2048", parse.whole(1, 1_000_000),
            "Spans that may wait for the export. Further ones are dropped and counted."),
    Setting("OTEL_BSP_SCHEDULE_DELAY", "delay", "5000", parse.milliseconds(1, 60_000),
            "Milliseconds between two exports; 512 waiting spans are exported at once."),
)  # fmt: skip


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of traces; `TRACING_SETTINGS` documents each field."""

    url: str
    headers: tuple[tuple[str, Secret], ...]
    timeout: timedelta
    service_name: str
    attributes: tuple[tuple[str, str], ...]
    sampler: str
    ratio: float
    queue_capacity: int
    delay: timedelta


def tracing_of(environment: Mapping[str, str]) -> TracingSettings | None:
    """The settings of traces; none where no collector is named. Raises SettingError.

    While traces are off the other variables are not read: they may be meant for other programs.
    """
    # The specification: an empty variable counts as unset.
    given = {name: value for name, value in environment.items() if value or not name.startswith(PREFIX)}
    by_field = {setting.field: setting for setting in TRACING_SETTINGS}

    def read(field: str) -> Any:
        setting = by_field[field]
        return value_of(setting, setting.name, given, setting.default)

    if read("disabled"):
        return None
    base_url, traces_url = read("base_url"), read("traces_url")
    if base_url is None and traces_url is None:
        return None
    read("protocol")
    return TracingSettings(
        url=traces_url or base_url.rstrip("/") + TRACES_PATH,
        headers=tuple((name, Secret(text)) for name, text in split_pairs(read("headers") or "")),
        timeout=read("timeout"),
        service_name=read("service_name"),
        attributes=split_pairs(read("attributes")),
        sampler=read("sampler"),
        ratio=read("ratio"),
        queue_capacity=read("queue_capacity"),
        delay=read("delay"),
    )
