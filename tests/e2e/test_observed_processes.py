"""Gateway, worker and back office as an operator sees them: metrics, log lines and probes, also without a database."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster import Cluster
from tests.support.contract import Contract
from tests.support.figures import scrape, scrape_anew
from tests.support.log_events import COMMON, events_on_page
from tests.support.metric_table import documented_metrics, served_name
from tests.support.orders import MARKET, place
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.process import Process
from tests.support.upgraded import upgraded_database

PROCESS_CHECKS = {"process", "journal", "worker", "venues", "disk", "clock"}


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, because the test stops it."""
    with PostgresServer() as started:
        yield started


class Site:
    """The three processes, and a broker that answers every order with 503."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, database_url: str) -> None:
        self._session = session
        self._contract = Contract()
        self.broker = cluster.broker(dedupe="none", faults={"refused_5xx": 1})
        metrics_port = free_port()
        settings = self.broker.client_settings(
            SWITCHYARD_DATABASE_URL=database_url,
            SWITCHYARD_METRICS_PORT=str(metrics_port),
            SWITCHYARD_LOG_FORMAT="json",
            SWITCHYARD_LOG_LEVEL="debug",
            RISK_MAX_QTY="5000",
            RISK_MAX_OPEN_NOTIONAL="1000000000",
        )
        self.processes = [cluster.process(role, role, **settings) for role in ("gateway", "worker", "backoffice")]
        self.gateway = self.processes[0]
        self.urls = [
            self.gateway.url,
            f"http://127.0.0.1:{metrics_port}",
            self.processes[2].backoffice_url,
        ]

    async def start(self) -> None:
        await self.broker.start()
        for process in self.processes:
            process.spawn()
        await until(lambda: self.has_status("ready"), self.logs, pause_seconds=0.1)

    async def ready(self, url: str) -> dict[str, Any]:
        """The answer of the readiness probe; empty before the process listens."""
        try:
            async with self._session.get(f"{url}/health/ready") as response:
                body = await response.read()
        except aiohttp.ClientError:
            return {}
        self._contract.check("GET", "/health/ready", response.status, response.headers, body)
        found: dict[str, Any] = json.loads(body)
        assert response.status == (503 if found["status"] == "not_ready" else 200)
        return found

    async def has_status(self, *allowed: str) -> bool:
        return {(await self.ready(url)).get("status") for url in self.urls} <= set(allowed)

    async def is_live(self) -> bool:
        async with self._session.get(f"{self.gateway.url}/health/live") as response:
            return response.status == 200

    def logs(self) -> str:
        return "".join(process.log for process in self.processes)


async def test_metrics_logs_and_probes_are_as_documented_and_outlive_the_database(
    server: PostgresServer, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    site = Site(cluster, session, await upgraded_database(server))
    await site.start()
    checks = [{check["check"] for check in (await site.ready(url))["checks"]} for url in site.urls]
    assert checks == [PROCESS_CHECKS | {"cache", "pdca"}, PROCESS_CHECKS, {"books", "reconcile", "journal", "disk"}]

    await place(session, site.gateway, body=MARKET, key="k")
    await place(session, site.gateway, body=MARKET, key="k")
    await reject(session, site.gateway)

    async def is_in_doubt() -> bool:
        figures = [await scrape(session, url) for url in site.urls[:2]]
        return [each["outbox_uncertain"] for each in figures] == [1, 1]

    await until(is_in_doubt, site.logs, pause_seconds=0.1)
    figures = await scrape_anew(session, site.gateway.url)
    assert figures["risk_rejections_total{RISK_MAX_QTY}"] == 1
    assert figures["risk_reserved_orders{JPY}"] == 1  # an order in doubt reserves its worst case
    assert figures["risk_reserved_notional{JPY}"] > 100_000
    assert figures["journal_up"] == 1 and figures["journal_seq"] > 3
    for url in site.urls:
        assert (await scrape(session, url))["disk_free_bytes{data}"] > 0
    await check_served_metrics(session, site.urls)

    server.stop()
    await until(lambda: is_away(session, site), site.logs, pause_seconds=0.1)
    server.start()
    await until(lambda: site.has_status("ready", "degraded"), site.logs, pause_seconds=0.1)
    assert (await scrape_anew(session, site.gateway.url))["journal_up"] == 1
    for process in site.processes:
        assert await asyncio.to_thread(process.stop) == 0
    check_lines(site.logs())


async def is_away(session: aiohttp.ClientSession, site: Site) -> bool:
    """Whether all processes say that the database is away; they still serve probes and metrics."""
    found = [await site.ready(url) for url in site.urls]
    failed = [{check["check"] for check in each["checks"] if check["status"] == "failed"} for each in found]
    figures = [await scrape(session, url) for url in site.urls]
    assert await site.is_live()
    return (
        all("journal" in each for each in failed[:2])
        and "books" in failed[2]  # they are in the same database
        and [each["journal_up"] for each in figures] == [0, 0, 0]
    )


async def reject(session: aiohttp.ClientSession, gateway: Process) -> None:
    body = {**MARKET, "qty": 5001}
    async with session.post(f"{gateway.url}/orders", json=body, headers=gateway.headers()) as response:
        assert response.status == 422


async def check_served_metrics(session: aiohttp.ClientSession, urls: list[str]) -> None:
    """Every process serves the metrics of the page, with its labels and no other."""
    documented = documented_metrics()
    for url in urls:
        async with session.get(f"{url}/metrics") as response:
            families = {served_name(family): family for family in text_string_to_metric_families(await response.text())}
        assert families.keys() == documented.keys(), url
        for name, family in families.items():
            for sample in family.samples:
                labels = {label: value for label, value in sample.labels.items() if label != "le"}
                assert labels.keys() <= documented[name].labels.keys(), sample
                for label, value in labels.items():
                    closed = documented[name].labels[label]
                    assert not closed or value in closed, sample


def check_lines(text: str) -> None:
    """Every line is an event of the page, with its fields and no other."""
    documented, seen = events_on_page(), set()
    for line in text.splitlines():
        fields = json.loads(line)
        event = documented[fields["event"]]
        assert fields.keys() <= event.fields | COMMON, line
        assert fields["level"] in event.levels or "any" in event.levels, line
        assert '"demo"' not in line, line  # the account
        seen.add(fields["event"])
    assert seen >= {"listening", "running", "stopped", "outbox_row_moved", "order_uncertain", "order_risk_rejected"}
    assert seen >= {"duplicate_prevented", "database_connection_lost"}
