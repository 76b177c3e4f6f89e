"""`POST /do/order` rejects bad requests with the field's name, and counts and logs every request."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from tests.support.do_order import PATH, body, do_order, error
from tests.support.figures import figures_of
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.http_requests import requests_in_progress
from tests.support.polling import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """One gateway for all requests that are rejected and write nothing."""
    async with running_gateway(tmp_path_factory.mktemp("shared"), DO_RATE_PER_MIN="1000") as running:
        yield running


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ordr_id": "x"}, "ordr_id"),
        ({"order_id": "absent"}, "order_id"),
        ({"order_id": ""}, "order_id"),
        ({"instrument": "TSLA"}, "instrument"),
        ({"instrument": None}, "instrument"),
        ({"side": "HOLD"}, "side"),
        ({"qty": 0}, "qty"),
        ({"qty": "0.1"}, "qty"),
        ({"qty": 0.000001}, "qty"),  # a tenth of a unit
        ({"qty": 1e14}, "qty"),
        ({"price": 145.0001}, "price"),  # off the tick
        ({"price": True}, "price"),
        ({"time_in_force": "DAY"}, "time_in_force"),
        ({"tags": ["x", 5]}, "tags"),
        ({"tags": ["x"] * 17}, "tags"),
        ({"requested_at": "yesterday"}, "requested_at"),
        ({"requested_at": "2025-08-24T00:00:00"}, "requested_at"),
        ({"trace_id": "a\nb"}, "trace_id"),
        ({"idempotency_key": "absent"}, "idempotency_key"),
        ({"risk_constraints": []}, "risk_constraints"),
        ({"risk_constraints": {"max_loss": 1}}, "risk_constraints.max_loss"),
        ({"risk_constraints": {"max_dd": -1}}, "risk_constraints.max_dd"),
        ({"risk_constraints": {"max_dd": "0.1"}}, "risk_constraints.max_dd"),
        ({"risk_constraints": {"max_consecutive_loss": 1.5}}, "risk_constraints.max_consecutive_loss"),
        ({"risk_constraints": {"max_spread": -0.1}}, "risk_constraints.max_spread"),
    ],
)
async def test_a_wrong_field_is_422_and_named(shared: RunningGateway, changes: dict[str, Any], field: str) -> None:
    answer = await do_order(shared, "wrong", **changes)
    assert error(answer) == (422, "VALIDATION_ERROR")
    assert answer.json["field"] == field
    assert answer.json["message"].startswith(f"{field}: ")


async def test_a_header_key_that_differs_from_the_body_is_rejected(shared: RunningGateway) -> None:
    for headers in ({}, {"Idempotency-Key": "other"}):
        answer = await shared.request("POST", PATH, account=None, headers=headers, body=body("mine"))
        assert error(answer) == (422, "IDEMPOTENCY_MISMATCH")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", (400, "INVALID_JSON")),
        (b"[]", (400, "INVALID_JSON")),
        (b'{"qty": NaN}', (400, "INVALID_JSON")),
        (b'{"qty": 1, "qty": 2}', (400, "INVALID_JSON")),
        (b'{"order_id": "\xff"}', (400, "INVALID_JSON")),
        (json.dumps(body("k", tags=["x" * 70_000])).encode(), (413, "BODY_TOO_LARGE")),
        (b"{}", (422, "VALIDATION_ERROR")),
    ],
)
async def test_a_body_that_is_not_an_order_is_rejected(
    shared: RunningGateway, content: bytes, expected: tuple[int, str]
) -> None:
    headers = {"Idempotency-Key": "k"}
    assert error(await shared.request("POST", PATH, account=None, headers=headers, body=content)) == expected


@pytest.mark.parametrize("key", ["a b", "x" * 256, "ключ"])
async def test_a_malformed_key_is_rejected(shared: RunningGateway, key: str) -> None:
    answer = await shared.request("POST", PATH, account=None, headers={"Idempotency-Key": key}, body=body(key))
    assert error(answer) == (400, "INVALID_IDEMPOTENCY_KEY")


async def test_a_bad_token_is_rejected_even_where_no_token_is_needed(shared: RunningGateway) -> None:
    for token in ("Bearer nonsense", "Basic eDp5", f"Bearer {shared.token()}x"):
        headers = {"Idempotency-Key": "k", "Authorization": token}
        answer = await shared.request("POST", PATH, account=None, headers=headers, body=body("k"))
        assert answer.status == 401
        assert answer.json["error"] == "UNAUTHORIZED"
        assert answer.json["reason_code"].startswith("TOKEN_")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def requests_counted(gateway: RunningGateway) -> float:
    return figures_of(generate_latest(gateway.engine.metrics.registry).decode()).get("order_requests_total", 0)


async def test_a_client_that_disconnects_in_mid_body_ends_its_request_without_an_error(shared: RunningGateway) -> None:
    host, _, port = shared.url.removeprefix("http://").partition(":")
    counted_before = await requests_counted(shared)
    with capture_logs() as lines:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /do/order HTTP/1.1\r\nHost: localhost:" + port.encode() + b"\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        await until(lambda: requests_in_progress() == 1)
        writer.close()
        await until(lambda: requests_in_progress() == 0)
        assert (await do_order(shared, "k", qty=-1)).status == 422
    assert [(line["event"], line["log_level"]) for line in lines] == [("do_order", "info")]
    assert await requests_counted(shared) == counted_before + 1


async def test_rejected_requests_write_nothing(shared: RunningGateway) -> None:
    assert await shared.journal_seq() == 0


async def test_a_token_is_needed_where_the_settings_require_it(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, DO_REQUIRE_TOKEN="true") as gateway:
        answer = await do_order(gateway, "k")
        assert error(answer) == (401, "UNAUTHORIZED")
        assert answer.json["reason_code"] == "TOKEN_MISSING"
        assert (await do_order(gateway, "k", account="demo")).status == 201


async def test_a_client_over_its_rate_gets_429_with_retry_after(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, DO_RATE_PER_MIN="2") as gateway:

        async def asked(account: str | None) -> list[CheckedResponse]:
            return [await do_order(gateway, "k", account=account) for _ in range(3)]

        # Limited by account with a token and by address without one; each has a limit of its own.
        for account in ("a", "b", None):
            *taken, limited = await asked(account)
            assert [answer.status for answer in taken] == [201, 200]
            assert error(limited) == (429, "RATE_LIMITED")
            seconds = limited.json["retry_after"]
            assert limited.headers["Retry-After"] == str(seconds)
            assert 1 <= seconds <= 60
        assert len((await gateway.get("/orders", "a")).json["orders"]) == 1


async def test_a_rate_limited_client_is_served_again_after_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.bootstrap.gateway.RATE_WINDOW", timedelta(seconds=2))  # instead of a minute
    async with running_gateway(tmp_path, DO_RATE_PER_MIN="1") as gateway:
        assert [(await do_order(gateway, "k")).status for _ in range(2)] == [201, 429]

        async def served() -> bool:
            return (await do_order(gateway, "k")).status == 200

        await until(served)


async def test_every_answer_is_counted_and_logged_without_private_data(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        with capture_logs() as lines:
            answers = [
                await do_order(gateway, "k", account="demo", trace_id="t-1", tags=["private"]),
                await do_order(gateway, "k", account="demo", trace_id="t-2", tags=["private"]),
                await do_order(gateway, "k", account="demo", trace_id="t-3", tags=["other"]),
                await do_order(gateway, "bad", trace_id="t-4\nforged line", qty=-1),
                await do_order(gateway, "wide", trace_id="t-5", risk_constraints={"max_spread": 0}),
            ]
        logged = [line for line in lines if line["event"] == "do_order"]
        members = ("trace_id", "idempotency_key", "status", "reason_code")
        assert [tuple(line[name] for name in members) for line in logged] == [
            ("t-1", "k", "filled", None),
            ("t-2", "k", "filled", None),
            ("t-3", "k", "IDEMPOTENCY_CONFLICT", None),
            (None, "bad", "VALIDATION_ERROR", None),
            ("t-5", "wide", "VALIDATION_ERROR", "MAX_SPREAD"),
        ]
        found = {"x_request_id", "http_status", "order_id", "latency_ms", "event", "log_level"}
        assert all(set(line) == {*members, *found} for line in logged)
        assert [line["x_request_id"] for line in logged] == [answer.headers["X-Request-Id"] for answer in answers]
        assert [line["http_status"] for line in logged] == [answer.status for answer in answers]
        assert len({line["x_request_id"] for line in logged}) == len(answers)
        assert logged[0]["order_id"] == logged[1]["order_id"] and logged[0]["order_id"].startswith("ord_")
        assert all(line["latency_ms"] > 0 for line in logged)
        text = repr(lines)
        assert "private" not in text and gateway.token()[:20] not in text
        metrics = (await gateway.request("GET", "/metrics", account=None)).body.decode()
        for line in (
            'order_requests_total{status="filled"} 2.0',
            'order_requests_total{status="IDEMPOTENCY_CONFLICT"} 1.0',
            'order_requests_total{status="VALIDATION_ERROR"} 2.0',
            "order_idempotency_conflicts_total 1.0",
            "order_broker_latency_ms_count 1.0",
            'order_broker_latency_ms_bucket{le="2500.0"} 1.0',
        ):
            assert line in metrics
