"""One order is one trace, from HTTP to posting, over processes and kills; and no order waits for the collector."""

import json
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from switchyard.telemetry.logs import account_hash
from tests.support.airflow import DAG, PASSWORD, USER, fake_airflow
from tests.support.cluster import Cluster
from tests.support.collector import Collector, Seen, collecting
from tests.support.do_order import body
from tests.support.figures import scrape
from tests.support.orders import MARKET, PATIENT, cancel, place, until_all_final
from tests.support.polling import until
from tests.support.process import Process, run_command

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


async def do_order(session: aiohttp.ClientSession, process: Process, key: str, **headers: str) -> dict[str, Any]:
    async with session.post(
        f"{process.url}/do/order",
        json=body(key, trace_id=f"trace of {key}"),
        headers={**process.headers("do", key=key), **headers},
    ) as response:
        assert response.status == 201, await response.text()
        shown: dict[str, Any] = await response.json()
        return shown


async def one_line(process: Process, event: str) -> dict[str, Any]:
    """The one log line of an event, once it is written."""

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in process.log.splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == event]

    await until(lambda: bool(found()), lambda: process.log)
    [line] = found()
    return line


async def seen(collector: Collector, name: str) -> list[Seen]:
    """The spans of this name in our trace, once there is one."""
    await until(lambda: bool(collector.named(name, TRACE)), lambda: str(collector.spans))
    return collector.named(name, TRACE)


def is_child(span: Seen, parent: Seen) -> bool:
    return (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)


async def test_an_order_is_one_trace_from_http_to_posting(
    cluster: Cluster, session: aiohttp.ClientSession, collector: Collector
) -> None:
    settings = collector.settings(
        SWITCHYARD_BACKOFFICE="true",
        SWITCHYARD_LOG_FORMAT="json",
        SWITCHYARD_LOG_LEVEL="debug",
        OTEL_SERVICE_NAME="desk",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
    )
    process = await cluster.process(**settings).start()
    await do_order(session, process, "one", traceparent=TRACEPARENT)
    entry = await collector.one("do.order", TRACE, lambda: process.log)
    assert (entry.parent_id, entry.kind, entry.failed) == (CALLER, "server", False)
    assert (entry.resource["service.name"], entry.role) == ("desk", "up")
    assert entry.resource["deployment.environment.name"] == "test"
    assert (entry["trace_id"], entry["idempotency_key"]) == ("trace of one", "one")
    assert entry.attributes["http.response.status_code"] == 201
    for name, kind in {
        "journal.commit": "internal",
        "venue.send": "client",
        "order.execution": "internal",
        "books.post": "consumer",
    }.items():
        span = await collector.one(name, TRACE, lambda: process.log)
        assert is_child(span, entry) and span.kind == kind and not span.failed, span
        assert span["order_id"] in (None, entry["order_id"])
    [send] = collector.named("venue.send")
    assert (send["outcome"], send["attempt"], send["venue"]) == ("Accepted", 1, "sim")
    assert {span["account_hash"] for span in collector.spans} == {None, account_hash("do")}
    for event in ("do_order", "outbox_row_moved"):
        line = await one_line(process, event)
        assert (line["otel_trace_id"], line["trace_id"]) == (TRACE, "trace of one")

    # A repeat, also in a trace of its own, is the same order and sends nothing.
    await place(session, process, "plain", MARKET)
    plain = await collector.one("orders")
    assert plain.parent_id == "" and plain.trace_id != TRACE
    await place(session, process, "plain", MARKET)
    await until(lambda: len(collector.named("orders")) == 2)
    assert {span["order_id"] for span in collector.named("orders")} == {plain["order_id"]}
    await collector.one("venue.send", plain.trace_id)

    # A cancel belongs to the trace of its own request.
    resting = await place(session, process, "resting", PATIENT, price=1)
    await cancel(session, process, resting)
    cancelling = await collector.one("orders.cancel")
    assert is_child(await collector.one("venue.cancel", message=lambda: process.log), cancelling)
    assert collector.named("journal.commit", cancelling.trace_id)[0]["events"] == "CancelRequested"

    # A malformed header is ignored, and one that says 'not sampled' is obeyed.
    for key, header in enumerate(("", "00-" + "0" * 32 + f"-{CALLER}-01", TRACEPARENT + "-more", "zz")):
        await do_order(session, process, f"malformed-{key}", traceparent=header)
    await do_order(session, process, "unsampled", traceparent=f"00-{'a' * 32}-{CALLER}-00")
    assert process.stop() == 0
    assert len(collector.named("do.order")) == 5
    assert [span.parent_id for span in collector.named("do.order")].count("") == 4
    assert collector.named("do.order", "a" * 32) == collector.named("venue.send", "a" * 32) == []
    verified = run_command("audit", "verify", **process.settings)
    assert verified.returncode == 0, verified.stderr


async def test_a_send_after_kills_and_the_posting_of_another_process_are_in_the_trace_of_the_request(
    cluster: Cluster, session: aiohttp.ClientSession, collector: Collector, database_url: str
) -> None:
    broker = await cluster.broker(faults={"refused_5xx": 1}).start()
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url, **collector.settings())
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    worker = await cluster.process("worker", "worker", **settings).start()
    office = cluster.process("backoffice", "backoffice", **settings)
    office.spawn()
    worker.kill()
    headers = {**gateway.headers(), "traceparent": TRACEPARENT}
    async with session.post(f"{gateway.url}/orders", json=PATIENT, headers=headers) as response:
        assert response.status == 202, await response.text()
    await worker.start()
    first = (await seen(collector, "venue.send"))[0]
    assert (first.role, first.failed, first["outcome"]) == ("worker", True, "Ambiguous")
    # What a process has not exported yet is lost with it.
    doubt = (await seen(collector, "order.uncertain"))[0]
    worker.kill()
    await broker.clear_faults()
    await worker.start()
    await until_all_final(session, gateway)
    entry = await collector.one("orders", TRACE)
    assert (entry.parent_id, entry.role) == (CALLER, "gateway")
    await until(lambda: collector.named("venue.send", TRACE)[-1]["outcome"] == "Accepted", lambda: worker.log)
    send = collector.named("venue.send", TRACE)[-1]
    assert not send.failed and send["attempt"] > first["attempt"]
    assert send.resource["service.instance.id"] != first.resource["service.instance.id"]
    fill = await collector.one("order.execution", TRACE)
    posting = await collector.one("books.post", TRACE, lambda: office.log)
    assert (fill.role, fill["status"], posting.role) == ("worker", "FILLED", "backoffice")
    for span in (first, send, doubt, fill, posting):
        assert is_child(span, entry), span
    broker.check_nothing_twice()


async def test_a_collector_that_hangs_fails_or_is_away_delays_no_order_and_no_stop(
    cluster: Cluster, session: aiohttp.ClientSession, collector: Collector
) -> None:
    settings = collector.settings(OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_EXPORTER_OTLP_TIMEOUT="60000")
    process = await cluster.process(name="first", **settings).start()

    async def dropped(reason: str) -> float:
        return (await scrape(session, process.url))[f"traces_spans_dropped_total{{{reason}}}"]

    async def has_dropped(reason: str) -> bool:
        return await dropped(reason) > 0

    async def trade(name: str) -> None:
        for number in range(20):
            await place(session, process, f"{name}-{number}", MARKET)
        await until_all_final(session, process)

    collector.mood = "hang"
    await place(session, process, "first", MARKET)
    await until(lambda: collector.requests > 0)
    await trade("hang")
    assert await has_dropped("queue_full")
    began = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - began < 50, "it waited for the collector, which answers nothing for 60 s"
    assert "traces_left_behind" in process.log

    collector.mood = "error"
    process = await cluster.process(name="second", **{**settings, "OTEL_EXPORTER_OTLP_TIMEOUT": "200"}).start()
    await trade("error")
    await until(lambda: has_dropped("export_failed"), lambda: process.log, pause_seconds=0.1)
    assert "traces_not_exported" in process.log
    collector.mood = "ok"
    await trade("again")
    await until(lambda: bool(collector.spans), lambda: process.log)
    collector.close()
    before = await dropped("export_failed")
    await trade("away")

    async def fails_again() -> bool:
        return await dropped("export_failed") > before

    await until(fails_again, lambda: process.log, pause_seconds=0.1)
    assert process.stop() == 0


async def test_a_recheck_of_another_process_is_in_the_trace_of_its_request_beside_airflow_and_the_database(
    cluster: Cluster, session: aiohttp.ClientSession, collector: Collector
) -> None:
    async with fake_airflow() as airflow:
        settings = collector.settings(
            SWITCHYARD_BACKOFFICE="true",
            PDCA_RUNNER="airflow",
            PDCA_AIRFLOW_URL=airflow.url,
            PDCA_AIRFLOW_USERNAME=USER,
            PDCA_AIRFLOW_PASSWORD=PASSWORD,
            PDCA_AIRFLOW_DAG=DAG,
        )
        process = await cluster.process(**settings).start()
        words = ("recheck", "read", "strategies")
        scopes = [part for word in words for part in ("--scope", f"pdca:{word}")]
        token = run_command("token", "--aud", "pdca", *scopes, **process.settings)
        headers = {"Authorization": f"Bearer {token.stdout.strip()}"}
        async with session.put(f"{process.url}/pdca/strategies/trend.h1", json={}, headers=headers) as response:
            assert response.status == 201, await response.text()
        stated = {"strategies": ["trend.h1"], "window": {"lookback_days": 2}, "reason": "manual", "trace_id": "t-1"}
        headers |= {"Idempotency-Key": "k-1", "traceparent": TRACEPARENT}
        async with session.post(f"{process.url}/pdca/recheck", json=stated, headers=headers) as response:
            assert response.status == 202, await response.text()
            request_id = (await response.json())["request_id"]
        assert process.stop() == 0
    entry = await collector.one("pdca.recheck", TRACE)
    assert (entry.parent_id, entry.kind, entry["request_id"]) == (CALLER, "server", request_id)
    assert entry["trace_id"] == "t-1"
    assert {"pdca.store.write", "airflow.token", "airflow.dag", "airflow.trigger"} <= collector.children(entry)
    assert {span.kind for span in collector.named("airflow.trigger") + collector.named("pdca.store.write")} == {
        "client"
    }

    ended = run_command("pdca", "run", request_id, **process.settings)
    assert ended.returncode == 0, ended.stderr
    item = await collector.one("pdca.recheck.item", TRACE)
    assert is_child(item, entry) and item.kind == "consumer"
    assert (item.role, item["strategy"], item["request_id"]) == ("pdca run", "trend.h1", request_id)
    assert "pdca.store.write" in collector.children(item)
