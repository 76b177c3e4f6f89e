"""`POST /do/order` rejects what it cannot take, naming the field, and counts and logs every request."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.support.do_order import PATH, body, do_order, error
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.polling import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """One for all that must leave no trace."""
    async with running_gateway(tmp_path_factory.mktemp("shared"), DO_RATE_PER_MIN="1000") as running:
        yield running


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ordr_id": "x"}, "ordr_id"),
        ({"order_id": "absent"}, "order_id"),
        ({"order_id": ""}, "order_id"),
        ({"instrument": "BTC"}, "instrument"),
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
async def test_a_wrong_field_is_named(shared: RunningGateway, changes: dict[str, Any], field: str) -> None:
    answer = await do_order(shared, "wrong", **changes)
    assert error(answer) == (422, "VALIDATION_ERROR")
    assert answer.json["field"] == field
    assert answer.json["message"].startswith(f"{field}: ")


async def test_the_header_must_carry_the_key_of_the_body(shared: RunningGateway) -> None:
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
async def test_a_body_that_is_no_order_is_rejected(
    shared: RunningGateway, content: bytes, expected: tuple[int, str]
) -> None:
    headers = {"Idempotency-Key": "k"}
    assert error(await shared.request("POST", PATH, account=None, headers=headers, body=content)) == expected


@pytest.mark.parametrize("key", ["a b", "x" * 256, "ключ"])
async def test_a_malformed_key_is_rejected(shared: RunningGateway, key: str) -> None:
    answer = await shared.request("POST", PATH, account=None, headers={"Idempotency-Key": key}, body=body(key))
    assert error(answer) == (400, "INVALID_IDEMPOTENCY_KEY")


async def test_a_bad_token_is_rejected_where_none_would_do(shared: RunningGateway) -> None:
    for token in ("Bearer nonsense", "Basic eDp5", f"Bearer {shared.token()}x"):
        headers = {"Idempotency-Key": "k", "Authorization": token}
        answer = await shared.request("POST", PATH, account=None, headers=headers, body=body("k"))
        assert answer.status == 401
        assert answer.json["error"].startswith("TOKEN_")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_client_that_hangs_up_in_mid_body_harms_nobody(shared: RunningGateway) -> None:
    host, _, port = shared.url.removeprefix("http://").partition(":")
    with capture_logs() as lines:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /do/order HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await do_order(shared, "k", qty=-1)).status == 422
    assert not [line for line in lines if line["log_level"] in ("error", "critical")]


async def test_nothing_of_what_was_rejected_is_written(shared: RunningGateway) -> None:
    assert await shared.journal_seq() == 0


async def test_a_token_may_be_needed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, DO_REQUIRE_TOKEN="true") as gateway:
        assert error(await do_order(gateway, "k")) == (401, "TOKEN_MISSING")
        assert (await do_order(gateway, "k", account="demo")).status == 201


async def test_a_client_over_its_rate_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, DO_RATE_PER_MIN="2") as gateway:

        async def asked(account: str | None) -> list[CheckedResponse]:
            return [await do_order(gateway, "k", account=account) for _ in range(3)]

        # By account with a token, by address without one: none uses up another's share.
        for account in ("a", "b", None):
            *taken, limited = await asked(account)
            assert [answer.status for answer in taken] == [201, 200]
            assert error(limited) == (429, "RATE_LIMITED")
            seconds = limited.json["retry_after"]
            assert limited.headers["Retry-After"] == str(seconds)
            assert 1 <= seconds <= 60
        assert len((await gateway.get("/orders", "a")).json["orders"]) == 1


async def test_a_client_that_comes_back_later_is_served_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.bootstrap.caches.RATE_WINDOW", timedelta(seconds=2))  # a minute is long for a test
    async with running_gateway(tmp_path, DO_RATE_PER_MIN="1") as gateway:
        assert [(await do_order(gateway, "k")).status for _ in range(2)] == [201, 429]

        async def served() -> bool:
            return (await do_order(gateway, "k")).status == 200

        await until(served)


async def test_every_answer_is_counted_and_logged_without_what_is_private(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        with capture_logs() as lines:
            await do_order(gateway, "k", account="demo", trace_id="t-1", tags=["private"])
            await do_order(gateway, "k", account="demo", trace_id="t-2", tags=["private"])
            await do_order(gateway, "k", account="demo", trace_id="t-3", tags=["other"])
            await do_order(gateway, "bad", trace_id="t-4\nforged line", qty=-1)
            await do_order(gateway, "wide", trace_id="t-5", risk_constraints={"max_spread": 0})
        said = [line for line in lines if line["event"] == "do.order"]
        members = ("trace_id", "idempotency_key", "status", "reason_code")
        assert [tuple(line[name] for name in members) for line in said] == [
            ("t-1", "k", "filled", None),
            ("t-2", "k", "filled", None),
            ("t-3", "k", "IDEMPOTENCY_CONFLICT", None),
            (None, "bad", "VALIDATION_ERROR", None),
            ("t-5", "wide", "VALIDATION_ERROR", "MAX_SPREAD"),
        ]
        assert all(set(line) == {*members, "latency_ms", "event", "log_level"} for line in said)
        assert all(line["latency_ms"] > 0 for line in said)
        whole = repr(lines)
        assert "private" not in whole and gateway.token()[:20] not in whole
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
