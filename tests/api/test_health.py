"""`/health` and `/health/ready`: which venues get no orders, with codes for everyone and reasons for operators."""

import json
from pathlib import Path

import pytest

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.raw_requests import ask


async def seen_by(gateway: RunningGateway, path: str, *scopes: str) -> str:
    token = gateway.token(scopes=scopes)
    answer = await gateway.request("GET", path, account=None, headers={"Authorization": f"Bearer {token}"})
    return answer.body.decode()


async def test_health_names_a_venue_that_does_not_answer_and_metrics_show_it_closed(tmp_path: Path) -> None:
    venue = f"http://127.0.0.1:{free_port()}"
    async with running_gateway(tmp_path, VENUE_URL_SIM=venue) as gateway:

        async def is_degraded() -> bool:
            return bool((await gateway.get("/health", account=None)).json["status"] == "degraded")

        await until(is_degraded)
        answer = await gateway.get("/health", account=None)
        assert answer.status == 200
        [closed] = answer.json["venues"]
        assert closed == {"venue": "sim", "state": "closed", "reason": "NOT_SYNCHRONISED"}
        text = (await gateway.get("/metrics", account=None)).body.decode()
        assert 'venue_state{venue="sim"} 0.0' in text
        order = (await gateway.place()).json["orderId"]
        assert (await gateway.order(order))["status"] == "ACCEPTED"


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_only_operators_see_addresses_and_the_texts_of_libraries(tmp_path: Path, path: str) -> None:
    port = str(free_port())
    settings = {"VENUE_URL_SIM": f"http://127.0.0.1:{port}", "KAFKA_ENABLE": "1"}
    async with running_gateway(tmp_path, KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{port}", **settings) as gateway:
        await until(lambda: bool(gateway.engine.venue_problems()) and gateway.engine.bus_problem() is not None)

        async def operator_sees() -> bool:
            return port in await seen_by(gateway, path, "admin:health")

        await until(operator_sees)
        assert port in await seen_by(gateway, path, "orders", "admin:kill")
        forged = {"Authorization": f"Bearer {gateway.token(scopes=('admin:health',))}x"}
        for shown in (
            (await gateway.get(path, account=None)).body.decode(),
            (await gateway.request("GET", path, account=None, headers=forged)).body.decode(),
            (await ask(gateway.url, f"GET {path} HTTP/1.1", "Host: probe.example")).body.decode(),
            await seen_by(gateway, path),
            await seen_by(gateway, path, "orders", "administrator"),
        ):
            assert json.loads(shown)["status"] == "degraded"
            assert port not in shown and "127.0.0.1" not in shown and " " not in shown, shown


async def test_health_is_ok_and_the_metric_is_one_once_the_venue_is_open(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.until_status((await gateway.place()).json["orderId"], "FILLED")
        assert (await gateway.get("/health", account=None)).json == {"status": "ok"}
        assert 'venue_state{venue="sim"} 1.0' in (await gateway.get("/metrics", account=None)).body.decode()
