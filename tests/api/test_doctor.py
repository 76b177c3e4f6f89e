"""`doctor` and `top`: what an operator sees of a process, and the exit codes."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import get_args

import pytest

from switchyard.domain.market.health import CheckName
from switchyard.entrypoints.cli.doctor import REMEDIES
from tests.support.books import KEEPS_BOOKS, office_pid
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.process import ROOT, SECRET, run_command


async def command(gateway: RunningGateway, *arguments: str, **settings: str) -> tuple[int, str, str]:
    settings = {"JWT_HS256_SECRET": SECRET, **settings}
    done = await asyncio.to_thread(run_command, *arguments, "--url", gateway.url, **settings)
    return done.returncode, done.stdout, done.stderr


async def test_all_checks_pass_in_a_process_that_works(embedded: RunningGateway) -> None:
    # A process that has just started reads the venue's orders first.
    await until(lambda: all(venue.reason is None for venue in embedded.engine.venue_states()))
    answer = await embedded.get("/health/ready", account=None)
    assert (answer.status, (await embedded.get("/health/live", account=None)).json) == (200, {"status": "ok"})
    code, out, _ = await command(embedded, "doctor", "--json")
    found = json.loads(out)
    assert {check["check"]: check["status"] for check in found["checks"] if check["check"] != "disk"} == dict.fromkeys(
        ("process", "journal", "worker", "venues", "cache", "pdca", "clock"), "ok"
    )
    assert code == (0 if found["status"] == "ready" else 1)


async def test_a_problem_is_named_with_what_to_do(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VENUE_URL_SIM=f"http://127.0.0.1:{free_port()}") as gateway:
        await until(lambda: bool(gateway.engine.venue_problems()))
        code, out, _ = await command(gateway, "doctor")
        assert code == 1
        assert "degraded" in out and "not synchronised" in " ".join(out.split())
        assert "docs/operate/venues.md" in out
        _, out, _ = await command(gateway, "doctor", JWT_HS256_SECRET="of another installation, 32 bytes")
        assert "not synchronised" not in out and "a token with the scope admin:health" in " ".join(out.split())
        gateway.engine.stop.set()  # as SIGTERM does

        async def is_stopping() -> bool:
            return (await gateway.get("/health/ready", account=None)).status == 503

        await until(is_stopping)
        assert "it is stopping" in (await command(gateway, "doctor"))[1]


async def test_a_bus_without_brokers_degrades_readiness_and_orders_go_on(tmp_path: Path) -> None:
    brokers = f"127.0.0.1:{free_port()}"
    async with running_gateway(tmp_path, KAFKA_ENABLE="1", KAFKA_BOOTSTRAP_SERVERS=brokers) as gateway:
        await until(lambda: gateway.engine.bus_problem() is not None)
        await gateway.place()
        answer = await gateway.get("/health/ready", account=None)
        assert answer.status == 200
        [bus] = [check for check in answer.json["checks"] if check["check"] == "bus"]
        assert bus["status"] == "degraded"
        assert "docs/operate/kafka.md" in (await command(gateway, "doctor"))[1]


async def test_a_lost_pdca_store_and_a_silent_back_office_degrade_readiness_and_orders_go_on(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_BACKOFFICE_PORT="0", **KEEPS_BOOKS) as gateway:

        async def statuses() -> dict[str, str]:
            answer = await gateway.get("/health/ready", account=None)
            assert answer.status == 200
            return {check["check"]: check["status"] for check in answer.json["checks"]}

        async def are_ok() -> bool:
            found = await statuses()
            return {found[name] for name in ("pdca", "books", "reconcile")} == {"ok"}

        await until(are_ok, pause_seconds=0.1)
        (tmp_path / "var" / "pdca.db").rename(tmp_path / "pdca.db")
        os.kill(office_pid(os.getpid()), signal.SIGSTOP)

        async def are_degraded() -> bool:
            found = await statuses()
            return {found[name] for name in ("pdca", "books", "reconcile")} == {"degraded"}

        await until(are_degraded, pause_seconds=0.1)
        await gateway.until_status((await gateway.place()).json["orderId"], "FILLED")
        _, out, _ = await command(gateway, "doctor")
        assert "the back office has been silent" in " ".join(out.split())
        assert "docs/operate/rechecks.md" in out and "docs/operate/breaks.md" in out


async def test_top_shows_doubts_queues_and_rates(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false", GATEWAY_METRICS_TOKEN="let-me-see") as gateway:
        await gateway.place()
        code, out, _ = await command(gateway, "top", "--once", "--json", GATEWAY_METRICS_TOKEN="let-me-see")
        look = json.loads(out)
        assert (code, look["levels"]["queued"], look["rates"]["sent"]) == (0, 1, 0)
        assert look["readiness"]["status"] == "degraded"  # nothing is sent
        code, out, _ = await command(gateway, "top", "--once", GATEWAY_METRICS_TOKEN="let-me-see")
        assert code == 0 and "queued" in out and "SWITCHYARD_WORKER is false" in " ".join(out.split())
        code, _, err = await command(gateway, "top", "--once")
        assert code == 1 and "GATEWAY_METRICS_TOKEN" in err


@pytest.mark.parametrize("name", ["doctor", "top"])
def test_a_process_that_does_not_answer_is_exit_code_3(name: str) -> None:
    done = run_command(name, "--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 3 and "no response from http://127.0.0.1" in done.stderr


def test_every_check_has_a_remedy_on_a_page_that_exists() -> None:
    assert REMEDIES.keys() == set(get_args(CheckName))
    for _, page in REMEDIES.values():
        assert (ROOT / page).is_file(), page
