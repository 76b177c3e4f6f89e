"""`/health` names the venues to which nothing is sent, and why."""

from pathlib import Path

from tests.support.gateway import running_gateway
from tests.support.polling import until
from tests.support.ports import free_port


async def test_health_names_a_venue_that_does_not_answer_and_metrics_show_it_closed(tmp_path: Path) -> None:
    venue = f"http://127.0.0.1:{free_port()}"
    async with running_gateway(tmp_path, VENUE_URL_SIM=venue) as gateway:

        async def is_degraded() -> bool:
            return bool((await gateway.get("/health", account=None)).json["status"] == "degraded")

        await until(is_degraded)
        answer = await gateway.get("/health", account=None)
        assert answer.status == 200
        [closed] = answer.json["venues"]
        assert (closed["venue"], closed["state"]) == ("sim", "closed")
        assert "not synchronised" in closed["reason"]
        text = (await gateway.get("/metrics", account=None)).body.decode()
        assert 'venue_state{venue="sim"} 0.0' in text
        order = (await gateway.place()).json["orderId"]
        assert (await gateway.order(order))["status"] == "ACCEPTED"


async def test_health_is_ok_and_the_metric_is_one_once_the_venue_is_open(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.until_status((await gateway.place()).json["orderId"], "FILLED")
        assert (await gateway.get("/health", account=None)).json == {"status": "ok"}
        assert 'venue_state{venue="sim"} 1.0' in (await gateway.get("/metrics", account=None)).body.decode()
