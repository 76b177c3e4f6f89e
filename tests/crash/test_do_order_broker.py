"""`/do/order` while its broker fails: every response is correct, and the broker executes each order once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from switchyard.domain import decisions
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.commit.sequencer import decide
from tests.support.build import a_report
from tests.support.cluster import Cluster
from tests.support.do_order import PATIENT, RESTING, do_order, error, key_entry
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.process import SECRET, run_command
from tests.support.venue_process import VenueProcess

FOLDERS = {"data": "var", "state": "state"}
UNLIMITED = {"VENUE_WINDOW_SEC_SIM": "1", "DO_RATE_PER_MIN": "10000", "DO_REQUIRE_TOKEN": "false"}


@asynccontextmanager
async def broker_and_gateway(
    cluster: Cluster, dedupe: str, *, starts: bool = True
) -> AsyncIterator[tuple[VenueProcess, RunningGateway]]:
    broker = cluster.broker(dedupe=dedupe)
    if starts:
        await broker.start()
    async with running_gateway(cluster.folder, **broker.client_settings(**UNLIMITED)) as gateway:
        if starts:
            # On a busy machine the gateway starts without a quote, and a condition on the spread needs one.
            await until_quoted(gateway)
        yield broker, gateway


async def until_quoted(gateway: RunningGateway) -> None:
    async def is_quoted() -> bool:
        return (await gateway.get("/quotes/USDJPY")).status == 200

    await until(is_quoted)


async def until_answered(gateway: RunningGateway, key: str, status: str, **changes: Any) -> CheckedResponse:
    """Repeat the request until the response has this status; returns the response."""
    responses: list[CheckedResponse] = []

    async def has_status() -> bool:
        responses[:] = [await do_order(gateway, key, **changes)]
        return bool(responses[0].json.get("status") == status)

    await until(has_status, lambda: f"{responses[0].body!r}")
    return responses[0]


async def test_an_order_is_sent_to_the_broker_in_units_and_answered_in_lots(cluster: Cluster) -> None:
    async with broker_and_gateway(cluster, "forever") as (broker, gateway):
        conditions = {"max_dd": 0.1, "max_consecutive_loss": 3, "max_spread": 0.002}
        response = await do_order(gateway, "k", price=None, time_in_force="IOC", risk_constraints=conditions)
        assert (response.status, response.json["status"], response.json["filled_qty"]) == (201, "filled", 0.1)
        assert [order["qty"] for order in broker.events("order")] == [10_000]
        wide = await do_order(gateway, "wide", risk_constraints={"max_spread": 0})
        assert (error(wide), wide.json["reason_code"]) == ((422, "VALIDATION_ERROR"), "MAX_SPREAD")
        assert sum(broker.orders().values()) == 1


@pytest.mark.parametrize("was_up", [False, True])
async def test_after_broker_down_the_same_key_is_tried_again_and_executed_once(cluster: Cluster, was_up: bool) -> None:
    async with broker_and_gateway(cluster, "open_only", starts=was_up) as (broker, gateway):
        if was_up:
            assert (await do_order(gateway, "first")).status == 201
            broker.kill()
        down = await do_order(gateway, "k")
        assert error(down) == (503, "BROKER_DOWN")
        assert down.headers["Retry-After"]
        assert (await key_entry(gateway, "k")).status == "failed"
        assert error(await do_order(gateway, "k", qty=0.2)) == (409, "IDEMPOTENCY_CONFLICT")
        with_spread = await do_order(gateway, "spread", risk_constraints={"max_spread": 1})
        assert error(with_spread) == (503, "BROKER_DOWN")
        await broker.start()
        up = await until_answered(gateway, "k", "filled")
        assert up.status in (200, 201)
        assert (await do_order(gateway, "k")).body == up.body
        assert (await key_entry(gateway, "k")).generation >= 1
        assert list(broker.orders().values()) == [1] * (1 + was_up)


async def test_after_a_restore_a_key_gets_no_second_client_order_id(cluster: Cluster) -> None:
    broker = cluster.broker(dedupe="permanent")
    folders = {
        "SWITCHYARD_DATA_DIR": str(cluster.folder / "var"),
        "SWITCHYARD_STATE_DIR": str(cluster.folder / "state"),
    }
    settings = broker.client_settings(**UNLIMITED)
    async with running_gateway(cluster.folder, **settings):
        pass
    assert run_command("db", "restored", JWT_HS256_SECRET=SECRET, **folders).returncode == 0
    async with running_gateway(cluster.folder, **settings) as gateway:
        # The lost history may have executed this key: before the venue is read, nobody knows.
        waiting = await do_order(gateway, "k")
        assert (waiting.status, waiting.json["status"]) == (201, "accepted")
        await broker.start()
        assert (await until_answered(gateway, "other", "filled", **PATIENT)).status in (200, 201)
        # Past its deadline it is in doubt until the venue has been asked: the lost history may have sent it.
        answer = await until_answered(gateway, "k", "expired")
        assert (answer.status, answer.json["reason_code"]) == (200, "ABSENT_AT_VENUE"), answer.json
        assert (await key_entry(gateway, "k")).generation == 0
        assert list(broker.orders().values()) == [1]


async def test_without_a_lookup_a_repeat_answers_unknown_and_sends_nothing(cluster: Cluster) -> None:
    async with broker_and_gateway(cluster, "none") as (broker, gateway):
        await broker.set_faults(drop_answer=1, drop_reports=1)
        lost = await do_order(gateway, "k")
        assert error(lost) == (504, "BROKER_TIMEOUT")
        await broker.clear_faults()
        for _ in range(3):
            repeat = await do_order(gateway, "k")
            assert (repeat.status, repeat.json["status"]) == (200, "unknown")
        assert (await key_entry(gateway, "k")).status == "accepted"
        assert list(broker.orders().values()) == [1]


@pytest.mark.parametrize("dedupe", ["forever", "open_only"])
async def test_a_lost_response_is_a_timeout_and_a_repeat_returns_the_result(cluster: Cluster, dedupe: str) -> None:
    async with broker_and_gateway(cluster, dedupe) as (broker, gateway):
        await broker.set_faults(drop_answer=1, late_reports=1)
        assert error(await do_order(gateway, "k", **PATIENT)) == (504, "BROKER_TIMEOUT")
        await broker.clear_faults()
        assert (await until_answered(gateway, "k", "filled", **PATIENT)).status == 200
        assert list(broker.orders().values()) == [1]


async def test_a_rejection_is_final_even_if_the_broker_would_accept_the_order_now(cluster: Cluster) -> None:
    async with broker_and_gateway(cluster, "forever") as (broker, gateway):
        await broker.set_faults(reject=1)
        first = await do_order(gateway, "k")
        assert error(first) == (400, "BROKER_REJECTED")
        assert "REJECTED_BY_VENUE" in first.json["reason_code"]
        await broker.clear_faults()
        repeat = await do_order(gateway, "k")
        assert (repeat.status, repeat.body) == (400, first.body)
        assert not broker.orders()


async def test_a_fill_after_the_cancel_replaces_the_final_response(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await do_order(gateway, "k", **RESTING)
        [order] = (await gateway.get("/orders", "do")).json["orders"]
        await gateway.request("POST", f"/orders/{order['orderId']}/cancel", account="do")
        canceled = await until_answered(gateway, "k", "canceled", **RESTING)
        assert (await do_order(gateway, "k", **RESTING)).body == canceled.body
        before = await key_entry(gateway, "k")

        def filled(state: OrderState) -> Change:
            return decisions.apply_report(state, None, a_report(state, exec_id="late"), gateway.engine.clock.now())

        journal, commit = gateway.database.journal, gateway.engine._core.sequencer.commit
        await decide(journal, commit, OrderId(order["orderId"]), filled)
        late = await do_order(gateway, "k", **RESTING)
        assert (late.status, late.json["status"], late.json["filled_qty"]) == (200, "filled", 0.1)
        assert [fill["exec_id"] for fill in late.json["fills"]] == ["late"]
        entry = await key_entry(gateway, "k")
        assert (entry.response_payload_json, entry.version) == (late.body.decode(), before.version + 1)


async def test_a_database_that_fails_after_the_order_was_written_is_not_a_rejection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as gateway:

        async def fails(_: OrderId) -> None:
            raise JournalUnavailable("the database is down")

        with monkeypatch.context() as patch:
            patch.setattr(gateway.engine.queries, "order", fails)
            unknown = [await do_order(gateway, "k") for _ in range(2)]
        assert [error(answer) for answer in unknown] == [(503, "OUTCOME_UNKNOWN")] * 2
        assert (await until_answered(gateway, "k", "filled")).status == 200
        assert len((await gateway.get("/orders", "do")).json["orders"]) == 1


async def test_a_stopping_gateway_answers_the_waiting_requests(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        waiting = asyncio.create_task(do_order(gateway, "k", account="do", **RESTING))
        await until(lambda: gateway.engine.hub.subscribers == 1)
        gateway.engine.hub.close()
        response = await waiting
        assert (response.status, response.json["status"], response.json["broker_order_id"]) == (201, "accepted", None)


async def test_an_order_that_the_broker_throttles_until_its_deadline_has_ended_and_says_so(cluster: Cluster) -> None:
    """Bytes of it were written, so its key must not take another client order id: no answer may ask for a repeat."""
    async with broker_and_gateway(cluster, "forever") as (broker, gateway):
        await broker.set_faults(rate_limit=1)
        first = await do_order(gateway, "k")
        assert (error(first), first.json["reason_code"]) == ((400, "BROKER_REJECTED"), "NOT_PROCESSED")
        assert "a new key" in first.json["message"]
        assert "Retry-After" not in first.headers
        await broker.clear_faults()
        repeat = await do_order(gateway, "k")
        assert (repeat.status, repeat.body) == (first.status, first.body)
        assert repeat.headers["Idempotent-Replayed"] == "true"
        assert not broker.orders()
        # The venue is throttled for a while after its 429.
        placed = await do_order(gateway, "another", **PATIENT)
        assert placed.status == 201
        await until_answered(gateway, "another", "filled", **PATIENT)
        assert sum(broker.orders().values()) == 1
