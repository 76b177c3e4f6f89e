"""Secrets stay where they belong: a canary in every secret setting and request field appears in no output."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from yarl import URL

from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command

# Characters that JSON and URLs write in another way.
CANARY = 'Canary/7"bird+0123456789abcdef0123456789abcdef'
IN_URL = "Canary%2F7%22bird%2B0123456789abcdef0123456789abcdef"
# A part of it that is the same in every notation.
TRACE = "0123456789abcdef0123456789abcdef"


def with_password(url: str) -> str:
    """The URL of a test database with the canary as its password, which the server does not ask for."""
    scheme, _, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0] or 'postgres'}:{IN_URL}@{host}" if at else url


@pytest.fixture(params=["text", "json"])
def secret_settings(request: pytest.FixtureRequest, engine_settings: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Every secret setting with a canary; some of them from a file."""
    settings = {
        "JWT_HS256_SECRET": f"jwt-{CANARY}",
        "SWITCHYARD_JOURNAL_KEY": f"journal-{CANARY}",
        "IDEMPO_SECRET": f"derive-{CANARY}",
        "GATEWAY_METRICS_TOKEN": f"metrics-{CANARY}",
        "SWITCHYARD_REDIS_URL": f"redis://:{IN_URL}@127.0.0.1:{free_port()}/0",
        "IDEMPOTENCY_CACHE_REDIS_PASSWORD": CANARY,
        "VENUE_URL_SIM": f"http://me:{IN_URL}@127.0.0.1:{free_port()}",
        "VENUE_TOKEN_SIM": f"venue-{CANARY}",
        "VENUE_TOKEN_HEADER_SIM": "X-Api-Key",
        "SWITCHYARD_LOG_FORMAT": request.param,
        "SWITCHYARD_LOG_LEVEL": "debug",
    }
    if url := engine_settings.get("SWITCHYARD_DATABASE_URL"):
        file = tmp_path / "database_url"
        file.write_text(with_password(url) + "\n")
        settings["SWITCHYARD_DATABASE_URL_FILE"] = str(file)
    return settings


async def test_a_canary_appears_in_no_log_metric_error_or_process_list(
    secret_settings: dict[str, str], tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    process = Process(tmp_path, **secret_settings)
    try:
        await process.start()
        answers = [await answer(session, process, *request) for request in requests(secret_settings)]
        assert {status for status, _ in answers} >= {202, 400, 401, 404, 422}
        metrics = {"X-Metrics-Token": secret_settings["GATEWAY_METRICS_TOKEN"]}
        outputs = [text for _, text in answers]
        for path in ("/metrics", "/health"):
            async with session.get(process.url + path, headers=metrics) as response:
                outputs.append(await response.text())
        tool = {**process.settings, **secret_settings}
        listed = await asyncio.to_thread(run_command, "outbox", "list", "--status", "queued", "--json", **tool)
        assert json.loads(listed.stdout), listed.stderr
        outputs += [listed.stdout, listed.stderr]
        processes = await asyncio.to_thread(subprocess.check_output, ["ps", "-eo", "args"], text=True)
        outputs.append("\n".join(line for line in processes.splitlines() if "switchyard" in line))
        # The broker and Redis do not answer: both are logged with their error.
        await until(lambda: "venue_not_synced" in process.log and "redis_unavailable" in process.log)
        assert process.stop() == 0
        outputs.append(process.log)
    finally:
        process.close()
    for output in outputs:
        assert TRACE not in output, output


def requests(settings: dict[str, str]) -> list[tuple[str, dict[str, str], Any]]:
    """Requests with the canary in each place in which a client can put it, and one valid order."""
    token = jwt.encode({"accountId": "demo", "exp": 4_000_000_000}, settings["JWT_HS256_SECRET"], "HS256")
    foreign = jwt.encode({"accountId": CANARY, "exp": 4_000_000_000}, f"other-{CANARY}", "HS256")
    valid = {"Authorization": f"Bearer {token}"}
    order = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "qty": 1000, "price": 150, "timeInForce": "GTC"}
    do_order = {"order_id": "o-1", "idempotency_key": "k-1", "instrument": "USDJPY", "side": "BUY", "qty": 0.1}
    wrong: dict[str, Any] = {"side": CANARY, "type": CANARY, "qty": CANARY, "price": CANARY, "timeInForce": CANARY}
    return [
        ("/orders", valid, order),
        *(("/orders", valid, {**order, name: value}) for name, value in wrong.items()),
        *(
            ("/orders", valid, {**order, name: [CANARY] * 50})
            for name in ("symbol", "clientOrderId", "strategy", "tags")
        ),
        ("/orders", valid, CANARY),
        ("/orders", {**valid, "Idempotency-Derive": CANARY}, order),
        ("/orders", {"Authorization": f"Bearer {CANARY}"}, order),
        ("/orders", {"Authorization": f"Bearer {foreign}"}, order),
        ("/orders", {"Authorization": f"Basic {CANARY}", "Cookie": CANARY, "User-Agent": CANARY}, order),
        *(
            ("/do/order", {**valid, "Idempotency-Key": "k-1"}, {**do_order, name: [CANARY]})
            for name in ("order_id", "instrument", "side", "qty", "risk_constraints", "requested_at")
        ),
        (f"/orders/{IN_URL}", valid, None),
        (f"/orders?status={IN_URL}", valid, None),
        (f"/orders?cursor={IN_URL}", valid, None),
        ("/metrics", {"X-Metrics-Token": CANARY}, None),
    ]


async def answer(
    session: aiohttp.ClientSession, process: Process, path: str, headers: dict[str, str], body: Any
) -> tuple[int, str]:
    method = "GET" if body is None else "POST"
    url = URL(process.url + path, encoded=True)
    async with session.request(method, url, headers=headers, json=body) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{IN_URL}@127.0.0.1:1/db",
        f"postgresql://me:{CANARY}@127.0.0.1:1/db",
        f"postgresql://me:{IN_URL}@127.0.0.1:{CANARY}/db",
        f"postgresql://me:{IN_URL}@127.0.0.1:1/db?sslmode={CANARY}",
        f"mysql://me:{IN_URL}@127.0.0.1:1/db",
    ],
)
def test_no_part_of_a_database_url_is_in_an_error(url: str, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(url)
    for settings in ({"SWITCHYARD_DATABASE_URL": url}, {"SWITCHYARD_DATABASE_URL_FILE": str(file)}):
        for command in (("up",), ("db", "upgrade"), ("outbox", "list")):
            done = run_command(*command, SWITCHYARD_DATA_DIR=str(tmp_path / "var"), SWITCHYARD_PORT="0", **settings)
            assert done.returncode == 4, done.stderr
            assert done.stderr.startswith("switchyard: ")
            assert done.stderr.count("\n") == 1
            assert "Canary" not in done.stderr + done.stdout
            assert TRACE not in done.stderr + done.stdout


def test_a_database_url_can_come_from_a_file(postgres_server: PostgresServer, tmp_path: Path) -> None:
    file = tmp_path / "database_url"
    file.write_text(postgres_server.create_database() + "\n")
    done = run_command("db", "upgrade", SWITCHYARD_DATABASE_URL_FILE=str(file))
    assert (done.returncode, done.stderr) == (0, "")
    missing = run_command("db", "upgrade", SWITCHYARD_DATABASE_URL_FILE=str(tmp_path / "missing"))
    assert missing.returncode == 4
    assert missing.stderr.startswith("switchyard: SWITCHYARD_DATABASE_URL_FILE: cannot be read")


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_up_prints_no_token_into_a_file(tmp_path: Path, log_format: str) -> None:
    process = Process(tmp_path, SWITCHYARD_LOG_FORMAT=log_format)
    del process.settings["JWT_HS256_SECRET"]  # with a secret of its own, a terminal would show a token
    try:
        await process.start()
        assert process.stop() == 0
    finally:
        process.close()
    assert "eyJ" not in process.log
    if log_format == "json":
        events = [json.loads(line) for line in process.log.splitlines()]
        assert {"listening", "stopping", "stopped"} <= {event["event"] for event in events}
    else:
        assert f"SWITCHYARD_DATA_DIR={tmp_path}/var" in process.log
        assert f"SWITCHYARD_PORT={process.port}" in process.log
