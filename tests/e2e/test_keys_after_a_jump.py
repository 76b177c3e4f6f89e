"""A wall clock that is set forward together with a start of a process: no key expires, so no order is placed twice."""

import signal
from datetime import timedelta

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import PATIENT, until_all_final
from tests.support.polling import until
from tests.support.posts import bearer, count_orders, post
from tests.support.skewed import SkewedProcess
from tests.support.stepped import step_server_clock

KEY = {"Idempotency-Key": "one"}
DERIVE = {"Idempotency-Derive": "true"}
PAST_TTL = timedelta(hours=25)
PAST_WINDOW = timedelta(hours=1)


@pytest.mark.parametrize(("headers", "step"), [(KEY, PAST_TTL), (DERIVE, PAST_WINDOW)], ids=["key", "derived"])
async def test_a_paused_gateway_and_a_worker_that_starts_after_a_step(
    database_url: str, cluster: Cluster, session: aiohttp.ClientSession, headers: dict[str, str], step: timedelta
) -> None:
    broker = await cluster.broker().start()
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url)
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    worker = await cluster.process("worker", "worker", **settings).start()
    first = await post(session, gateway, bearer("demo") | headers, **PATIENT)
    await until_all_final(session, gateway)
    worker.stop()
    gateway.send(signal.SIGSTOP)
    await step_server_clock(database_url, step)
    later = await cluster.process("worker", "later", **settings).start()
    gateway.send(signal.SIGCONT)
    await until(lambda: "clock_paused" in gateway.log)

    repeat = await post(session, gateway, bearer("demo") | headers, **PATIENT)

    assert repeat["orderId"] == first["orderId"]
    assert "clock_jumped" in later.log
    await until_all_final(session, gateway)
    assert list(broker.orders().values()) == [1]


@pytest.mark.parametrize(("headers", "step"), [(KEY, PAST_TTL), (DERIVE, PAST_WINDOW)], ids=["key", "derived"])
async def test_a_restart_after_a_step_with_the_embedded_database(
    cluster: Cluster, session: aiohttp.ClientSession, headers: dict[str, str], step: timedelta
) -> None:
    broker = await cluster.broker().start()
    process = cluster.add(SkewedProcess(cluster.folder / "up", "up", timedelta(), **broker.client_settings()))
    await process.start()
    first = await post(session, process, bearer("demo") | headers, **PATIENT)

    async def is_filled() -> bool:
        return sum(broker.orders().values()) == 1

    await until(is_filled)
    process.step(step)
    await until(lambda: "clock_stepped" in process.log)
    for _ in range(2):  # the second restart must remember what the first one noticed
        process.kill()
        await process.start()
        repeat = await post(session, process, bearer("demo") | headers, **PATIENT)
        assert repeat["orderId"] == first["orderId"]
    assert process.log.count("clock_jumped") == 1, "the second restart is explained by the machine's clock"
    assert await count_orders(session, process, bearer("demo")) == 1
    assert list(broker.orders().values()) == [1]
