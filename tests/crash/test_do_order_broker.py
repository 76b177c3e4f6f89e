"""`/do/order` while its broker misbehaves: every answer is true, and the broker executes once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from switchyard.domain import decisions
from switchyard.domain.changes import Change
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import OrderId
from switchyard.domain.outbox import OrderState
from switchyard.flow.decide import decide
from tests.support.build import a_report
from tests.support.do_order import PATIENT, RESTING, do_order, error, key_entry
from tests.support.gateway import Answer, RunningGateway, running_gateway
from tests.support.process import until
from tests.support.venue_process import VenueProcess


@asynccontextmanager
async def broker_and_gateway(
    folder: Path, dedupe: str, *, starts: bool = True
) -> AsyncIterator[tuple[VenueProcess, RunningGateway]]:
    venue = VenueProcess(folder / "venue", "--dedupe", dedupe)
    settings = {
        "VENUE_URL_SIM": venue.url,
        "VENUE_DEDUPE_SIM": dedupe,
        "VENUE_LOOKUP_SIM": "none" if dedupe == "none" else "all",
        "VENUE_WINDOW_SEC_SIM": "1",
        "DO_RATE_PER_MIN": "10000",
    }
    try:
        if starts:
            await venue.start()
        async with running_gateway(folder, **settings) as gateway:
            yield venue, gateway
    finally:
        venue.close()


async def answered(gateway: RunningGateway, key: str, status: str, **changes: Any) -> Answer:
    """The first repeat that tells this status."""
    found: list[Answer] = []

    async def told() -> bool:
        found[:] = [await do_order(gateway, key, **changes)]
        return bool(found[0].json.get("status") == status)

    await until(told)
    return found[0]


async def test_an_order_is_sent_to_the_broker_in_units_and_answered_in_lots(tmp_path: Path) -> None:
    async with broker_and_gateway(tmp_path, "forever") as (venue, gateway):
        conditions = {"max_dd": 0.1, "max_consecutive_loss": 3, "max_spread": 0.002}
        answer = await do_order(gateway, "k", price=None, time_in_force="IOC", risk_constraints=conditions)
        assert (answer.status, answer.json["status"], answer.json["filled_qty"]) == (201, "filled", 0.1)
        assert [order["qty"] for order in venue.events("order")] == [10_000]
        wide = await do_order(gateway, "wide", risk_constraints={"max_spread": 0})
        assert (error(wide), wide.json["reason_code"]) == ((422, "VALIDATION_ERROR"), "MAX_SPREAD")
        assert sum(venue.orders().values()) == 1


@pytest.mark.parametrize("was_up", [False, True])
async def test_after_broker_down_the_same_key_is_tried_again_and_executed_once(tmp_path: Path, was_up: bool) -> None:
    async with broker_and_gateway(tmp_path, "open_only", starts=was_up) as (venue, gateway):
        if was_up:
            assert (await do_order(gateway, "first")).status == 201
            venue.kill()
        down = await do_order(gateway, "k")
        assert error(down) == (503, "BROKER_DOWN")
        assert down.headers["Retry-After"]
        assert (await key_entry(gateway, "k")).status == "failed"
        assert error(await do_order(gateway, "k", qty=0.2)) == (409, "IDEMPOTENCY_CONFLICT")
        asked = error(await do_order(gateway, "spread", risk_constraints={"max_spread": 1}))
        assert asked == (503, "BROKER_DOWN")
        await venue.start()
        up = await answered(gateway, "k", "filled")
        assert up.status in (200, 201)
        assert (await do_order(gateway, "k")).body == up.body
        assert (await key_entry(gateway, "k")).generation >= 1
        assert list(venue.orders().values()) == [1] * (1 + was_up)


async def test_where_nobody_can_be_asked_doubt_is_told_and_nothing_is_sent(tmp_path: Path) -> None:
    async with broker_and_gateway(tmp_path, "none") as (venue, gateway):
        await venue.set_faults(drop_answer=1, drop_reports=1)
        lost = await do_order(gateway, "k")
        assert error(lost) == (504, "BROKER_TIMEOUT")
        await venue.clear_faults()
        for _ in range(3):
            repeat = await do_order(gateway, "k")
            assert (repeat.status, repeat.json["status"]) == (200, "unknown")
        assert (await key_entry(gateway, "k")).status == "accepted"
        assert list(venue.orders().values()) == [1]


@pytest.mark.parametrize("dedupe", ["forever", "open_only"])
async def test_a_lost_answer_is_a_time_out_and_then_the_result(tmp_path: Path, dedupe: str) -> None:
    async with broker_and_gateway(tmp_path, dedupe) as (venue, gateway):
        await venue.set_faults(drop_answer=1, late_reports=1)
        assert error(await do_order(gateway, "k", **PATIENT)) == (504, "BROKER_TIMEOUT")
        await venue.clear_faults()
        assert (await answered(gateway, "k", "filled", **PATIENT)).status == 200
        assert list(venue.orders().values()) == [1]


async def test_a_rejection_stands_even_when_the_broker_would_take_it_now(tmp_path: Path) -> None:
    async with broker_and_gateway(tmp_path, "forever") as (venue, gateway):
        await venue.set_faults(reject=1)
        first = await do_order(gateway, "k")
        assert error(first) == (400, "BROKER_REJECTED")
        assert "REJECTED_BY_VENUE" in first.json["reason_code"]
        await venue.clear_faults()
        repeat = await do_order(gateway, "k")
        assert (repeat.status, repeat.body) == (400, first.body)
        assert not venue.orders()


async def test_a_fill_that_crosses_a_cancel_is_told_though_the_answer_was_final(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await do_order(gateway, "k", **RESTING)
        [order] = (await gateway.get("/orders", "do")).json["orders"]
        await gateway.request("POST", f"/orders/{order['orderId']}/cancel", account="do")
        canceled = await answered(gateway, "k", "canceled", **RESTING)
        assert (await do_order(gateway, "k", **RESTING)).body == canceled.body
        before = await key_entry(gateway, "k")

        def filled(state: OrderState) -> Change:
            return decisions.apply_report(state, None, a_report(state, exec_id="late"), gateway.engine.clock.now())

        journal, commit = gateway.engine._database.journal, gateway.engine.sequencer.commit
        await decide(journal, commit, OrderId(order["orderId"]), filled)
        late = await do_order(gateway, "k", **RESTING)
        assert (late.status, late.json["status"], late.json["filled_qty"]) == (200, "filled", 0.1)
        assert [fill["exec_id"] for fill in late.json["fills"]] == ["late"]
        entry = await key_entry(gateway, "k")
        assert (entry.response_payload_json, entry.version) == (late.body.decode(), before.version + 1)


async def test_a_database_that_goes_away_after_the_order_was_written_is_no_rejection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as gateway:

        async def away(_: OrderId) -> None:
            raise JournalUnavailable("the database is away")

        with monkeypatch.context() as patch:
            patch.setattr(gateway.engine.queries, "order", away)
            unknown = await do_order(gateway, "k")
        assert error(unknown) == (503, "OUTCOME_UNKNOWN")
        assert (await answered(gateway, "k", "filled")).status == 200
        assert len((await gateway.get("/orders", "do")).json["orders"]) == 1


async def test_a_stop_answers_those_who_wait(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        waiting = asyncio.create_task(do_order(gateway, "k", **RESTING))
        await until(lambda: gateway.engine.hub.subscribers == 1)
        gateway.engine.hub.close()
        answer = await waiting
        assert (answer.status, answer.json["status"], answer.json["broker_order_id"]) == (201, "accepted", None)
