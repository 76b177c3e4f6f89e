"""The simulator's log, deduplication and restarts, on which the tests of exactly-once rely."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders.order import ALL_KINDS
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.ports.venue import Accepted, Capabilities
from switchyard.venue.bridge import Bridge
from tests.support.polling import until
from tests.support.process import run_command
from tests.support.venue_orders import an_order, bare, by_id, open_orders, read_reports
from tests.support.venue_process import VenueProcess

# A buy limit far below the market: the order rests.
FAR = "1"


@asynccontextmanager
async def running(folder: Path, *options: str) -> AsyncIterator[VenueProcess]:
    simulator = VenueProcess(folder, *options)
    try:
        await simulator.start()
        yield simulator
    finally:
        simulator.close()


@asynccontextmanager
async def adapter(simulator: VenueProcess) -> AsyncIterator[Bridge]:
    venue = http_venue(
        VenueName("broker"),
        url=simulator.url,
        capabilities=Capabilities(dedupe="while_open", lookup="all", kinds=ALL_KINDS),
        clock=SystemClock(),
    )
    await venue.start()
    try:
        yield venue
    finally:
        await venue.close()


def a_body(client_id: str = "one", **changes: Any) -> dict[str, Any]:
    return {
        "idempotency_key": client_id,
        "client_order_id": client_id,
        "symbol": "USDJPY",
        "intent": "BUY",
        "qty": 1000,
        "type": "MARKET",
        "time_in_force": "IOC",
        **changes,
    }


async def post_order(simulator: VenueProcess, body: object, key: str | None = "one") -> tuple[int, Any]:
    headers = {} if key is None else {"Idempotency-Key": key}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{simulator.url}/orders", data=msgspec.json.encode(body), headers=headers) as response,
    ):
        return response.status, await response.json()


async def get(simulator: VenueProcess, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(simulator.url + path) as response:
        return response.status, await response.json()


async def test_an_order_has_one_log_line_however_often_it_is_posted(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator, adapter(simulator) as venue:
        outcomes = await asyncio.gather(*(venue.submit(an_order(f"order-{n % 10}")) for n in range(200)))
        assert len(set(outcomes)) == 10
        assert simulator.orders() == Counter({f"order-{n}": 1 for n in range(10)})
        [line] = [line for line in simulator.events("order") if line["client_order_id"] == "order-3"]
        assert bare(outcomes[3]) == Accepted(line["venue_order_id"])
        assert (line["exec_id"], line["qty"], line["price"], line["trace_id"]) == (None, 1000, None, "ord_order-3")
        assert len(simulator.events("fill")) == 10


async def test_an_acknowledged_order_is_in_the_log_even_if_the_process_is_killed_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator, adapter(simulator) as venue:
        acknowledged: dict[str, str] = {}

        async def submit(number: int) -> None:
            outcome = await venue.submit(an_order(f"order-{number}"))
            if isinstance(outcome, Accepted):
                acknowledged[f"order-{number}"] = outcome.venue_order_id

        sends = [asyncio.create_task(submit(number)) for number in range(500)]
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        simulator.kill()
        logged = {line["client_order_id"]: line["venue_order_id"] for line in simulator.events("order")}
        # Responses that were in transit when the process was killed count as well.
        await asyncio.gather(*sends)
        assert acknowledged
        assert acknowledged.items() <= logged.items()


@pytest.mark.parametrize(
    ("options", "filled_again", "open_again"),
    [
        (["--dedupe", "forever"], 1, 1),
        (["--dedupe", "open_only"], 2, 1),
        (["--dedupe", "ttl", "--dedupe-ttl", "3600"], 1, 1),
        (["--dedupe", "ttl", "--dedupe-ttl", "0"], 2, 2),
        (["--dedupe", "none"], 2, 2),
    ],
    ids=["forever", "open_only", "ttl", "ttl 0", "none"],
)
async def test_a_repeated_id_is_recognised_as_configured_even_after_a_restart(
    tmp_path: Path, options: list[str], filled_again: int, open_again: int
) -> None:
    async with running(tmp_path, *options) as simulator:
        orders = [an_order("filled"), an_order("open", price=FAR)]
        async with adapter(simulator) as venue:
            first = [await venue.submit(order) for order in orders]
            again = [await venue.submit(order) for order in orders]
        assert simulator.orders() == {"filled": filled_again, "open": open_again}
        assert [before == after for before, after in zip(first, again, strict=True)] == [
            filled_again == 1,
            open_again == 1,
        ]
        simulator.kill()
        await simulator.start()
        async with adapter(simulator) as venue:
            for order in orders:
                await venue.submit(order)
        assert simulator.orders() == {"filled": 2 * filled_again - 1, "open": 2 * open_again - 1}


async def test_an_ended_order_is_found_as_configured(tmp_path: Path) -> None:
    for lookup in ("open", "all"):
        async with running(tmp_path / lookup, "--lookup", lookup) as simulator, adapter(simulator) as venue:
            await venue.submit(an_order("filled"))
            await venue.submit(an_order("open", price=FAR))
            assert await venue.find(by_id(VenueClientOrderId("open"))) is not None
            assert (await venue.find(by_id(VenueClientOrderId("filled"))) is not None) == (lookup == "all")


async def test_an_order_that_arrives_after_expires_at_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        status, response = await post_order(simulator, a_body(expires_at="2026-01-05T09:00:00Z"))
        assert (status, response["error"]) == (400, "REQUEST_EXPIRED")
        assert not simulator.orders()
        status, _ = await post_order(simulator, a_body(expires_at="2999-01-05T09:00:00Z"))
        assert (status, simulator.orders()) == (200, {"one": 1})


async def amend_order(simulator: VenueProcess, client_id: str, body: object) -> tuple[int, Any]:
    url = f"{simulator.url}/orders/{client_id}"
    async with (
        aiohttp.ClientSession() as session,
        session.patch(url, data=msgspec.json.encode(body)) as response,
    ):
        return response.status, await response.json()


async def test_an_amended_order_stays_amended_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("open", price=FAR))
        status, response = await amend_order(simulator, "open", {"qty": 3000})
        assert (status, response["qty"], response["status"]) == (200, 3000, "accepted")
        status, response = await amend_order(simulator, "open", {"limit_price": 2})
        assert (status, response["qty"]) == (200, 3000)
        assert [(line["qty"], line["price"]) for line in simulator.events("amend")] == [(3000, 1), (3000, 2)]
        simulator.kill()
        await simulator.start()
        status, response = await amend_order(simulator, "open", {"limit_price": 1000})
        assert (status, response["status"], response["filled_qty"]) == (200, "filled", 3000)
        [fill] = simulator.events("fill")
        assert (fill["qty"], fill["client_order_id"]) == (3000, "open")


async def test_an_invalid_amend_is_rejected_and_the_order_is_unchanged(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator, adapter(simulator) as venue:
        await venue.submit(an_order("open", price=FAR))
        await venue.submit(an_order("filled"))
        for client_id, body, expected in (
            ("open", {}, (422, "VALIDATION_ERROR")),
            ("open", {"qty": 0}, (422, "VALIDATION_ERROR")),
            ("open", {"qty": -5}, (422, "VALIDATION_ERROR")),
            ("open", {"price": 5}, (422, "VALIDATION_ERROR")),
            ("open", {"limit_price": 150.0001}, (400, "INVALID_PRICE")),
            ("filled", {"qty": 5000}, (409, "ORDER_FINAL")),
            ("unknown", {"qty": 5000}, (404, "UNKNOWN_ORDER")),
        ):
            status, response = await amend_order(simulator, client_id, body)
            assert (status, response["error"]) == expected
        assert simulator.events("amend") == []


async def test_an_amend_to_the_filled_quantity_or_less_is_rejected(tmp_path: Path) -> None:
    """A crash between two fills leaves a partially filled open order; the test cuts the log to produce one."""
    async with running(tmp_path, "--fault", "partial_fills=2") as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("open", price="1000"))
        simulator.kill()
        lines = simulator.events_path.read_bytes().splitlines(keepends=True)
        order = msgspec.json.decode(lines[0])
        order["order"].update(due_at=None, fill_price=None, limit_price="1", qty="1000")
        simulator.events_path.write_bytes(msgspec.json.encode(order) + b"\n" + b"".join(lines[1:3]))
        await simulator.start()
        for qty, expected in ((400, 400), (500, 400), (501, 200)):
            status, response = await amend_order(simulator, "open", {"qty": qty})
            assert status == expected, response
        assert (response["qty"], response["filled_qty"], response["status"]) == (501, 500, "partially_filled")


async def test_dropped_reports_are_not_published_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, "--fault", "drop_reports=1") as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("one"))
        simulator.kill()
        simulator.arguments = simulator.arguments[:-2]
        await simulator.start()
        async with adapter(simulator) as venue:
            await venue.submit(an_order("two"))
            assert [report.venue_client_order_id for report in await read_reports(venue, 1)] == ["two"]


async def test_a_restart_continues_orders_and_report_numbers(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        resting = an_order("open", price=FAR)
        async with adapter(simulator) as venue:
            await venue.submit(an_order("filled"))
            accepted = await venue.submit(resting)
            before = await read_reports(venue, 1)
        simulator.kill()
        await simulator.start()
        async with adapter(simulator) as venue:
            [found] = await open_orders(venue)
            assert bare(accepted) == Accepted(found.venue_order_id)
            assert await venue.cancel(resting) == bare(accepted)
            await venue.submit(an_order("later"))
            after = await read_reports(venue, 3)
        assert after[0] == before[0]
        assert [(report.venue_client_order_id, report.status) for report in after] == [
            ("filled", "FILLED"),
            ("open", "CANCELED"),
            ("later", "FILLED"),
        ]
        assert len({report.exec_id for report in after}) == 3
        assert [line["number"] for line in simulator.events("report")] == [1, 2, 3]


async def test_a_crash_within_a_group_neither_loses_nor_repeats_a_fill(tmp_path: Path) -> None:
    """Whichever part of the last group is in the file, a restart carries out the rest exactly once."""
    async with running(tmp_path, "--fault", "partial_fills=3") as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("one"))
        simulator.kill()
        whole = simulator.events_path.read_bytes()
        lines = whole.splitlines(keepends=True)
        assert [line["event"] for line in simulator.events()] == ["order"] + ["fill", "report"] * 3
        for kept in range(1, len(lines)):
            simulator.events_path.write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
            await simulator.start()
            async with adapter(simulator) as venue:
                reports: list[ExecutionReport] = await read_reports(venue, 3)
                found = await venue.find(by_id(VenueClientOrderId("one")))
            simulator.kill()
            assert found is not None and (found.status, int(found.filled_qty)) == ("FILLED", 1000)
            assert sorted(report.exec_id[-2:] for report in reports) == ["-1", "-2", "-3"]
            assert sum(report.last_qty for report in reports) == 1000
            assert (simulator.orders()["one"], len(simulator.events("fill"))) == (1, 3)


async def test_a_crash_between_the_trigger_of_a_stop_order_and_its_fill_fills_it_once(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("one", order_type="STOP", time_in_force="GTC", stop="1"))
        simulator.kill()
        lines = simulator.events_path.read_bytes().splitlines(keepends=True)
        assert [line["event"] for line in simulator.events()] == ["order", "trigger", "report", "fill", "report"]
        for kept in range(1, len(lines)):
            simulator.events_path.write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
            await simulator.start()
            async with adapter(simulator) as venue:
                reports = await read_reports(venue, 2)
            simulator.kill()
            assert [(report.exec_type, report.status) for report in reports] == [
                ("TRIGGERED", "WORKING"),
                (None, "FILLED"),
            ]
            assert (len(simulator.events("trigger")), len(simulator.events("fill"))) == (1, 1)


async def test_day_orders_expire_also_if_the_broker_was_down_at_the_end_of_the_day(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("limit", price=FAR, time_in_force="DAY"))
            await venue.submit(an_order("stop", order_type="STOP", time_in_force="DAY", stop="9000"))
            await venue.submit(an_order("kept", price=FAR))
        simulator.kill()
        simulator.arguments += ["--clock-offset", "86400"]
        await simulator.start()
        async with adapter(simulator) as venue:
            reports = await read_reports(venue, 2)
            [kept] = await open_orders(venue)
    assert {(report.venue_client_order_id, report.status, report.reason) for report in reports} == {
        ("limit", "EXPIRED", "DAY_ENDED"),
        ("stop", "EXPIRED", "DAY_ENDED"),
    }
    assert kept.venue_client_order_id == "kept"


async def test_a_second_simulator_on_the_same_log_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        second = run_command("venue-sim", "--port", "0", "--log", str(simulator.events_path))
        assert second.returncode == 4
        assert "another process writes" in second.stderr


def test_a_file_that_is_not_a_simulator_log_is_rejected_and_unchanged(tmp_path: Path) -> None:
    log = tmp_path / "other.jsonl"
    log.write_text('{"event":"party"}\n')
    rejected = run_command("venue-sim", "--port", "0", "--log", str(log))
    assert rejected.returncode == 4
    assert "line 1" in rejected.stderr
    assert log.read_text() == '{"event":"party"}\n'


async def test_it_exits_with_zero_on_sigterm(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        assert simulator.stop() == 0
        assert "Traceback" not in simulator.log


@pytest.mark.parametrize(
    ("body", "key", "status", "error"),
    [
        (a_body(), None, 422, "IDEMPOTENCY_MISMATCH"),
        (a_body(), "two", 422, "IDEMPOTENCY_MISMATCH"),
        (a_body(limt_price=1), "one", 422, "VALIDATION_ERROR"),
        (a_body(qty="many"), "one", 422, "VALIDATION_ERROR"),
        (a_body(qty=0.5), "one", 400, "INVALID_QTY"),
        (a_body(type="STOP", stop_price=1), "one", 400, "INVALID_TIME_IN_FORCE"),
        (a_body(meta={"note": "x" * 70_000}), "one", 413, "BODY_TOO_LARGE"),
    ],
)
async def test_an_invalid_body_is_rejected_with_its_error_code(
    tmp_path: Path, body: dict[str, Any], key: str | None, status: int, error: str
) -> None:
    async with running(tmp_path) as simulator:
        response = await post_order(simulator, body, key)
        assert (response[0], response[1]["error"]) == (status, error)
        assert simulator.orders() == {}


async def test_a_reduce_only_order_is_taken_only_against_an_open_position_also_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        sell = {"intent": "SELL", "reduce_only": True}

        async def post(client_id: str, **changes: Any) -> tuple[int, str | None]:
            status, response = await post_order(simulator, a_body(client_id, **changes), client_id)
            return status, response.get("error")

        rejected = (400, "REDUCE_ONLY")
        assert await post("flat", **sell) == rejected
        assert await post("long") == (200, None)
        assert await post("more", reduce_only=True) == rejected
        assert await post("too-much", qty=2000, **sell) == rejected
        simulator.kill()
        await simulator.start()
        assert await post("close", **sell) == (200, None)
        assert await post("again", **sell) == rejected


async def test_reuse_of_an_id_for_another_order_is_a_conflict(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        assert (await post_order(simulator, a_body()))[0] == 200
        status, response = await post_order(simulator, a_body(qty=2000))
        assert (status, response["error"]) == (409, "ID_REUSED")
        assert simulator.orders() == {"one": 1}


async def test_the_statement_has_every_fill_once_even_if_reports_repeat(tmp_path: Path) -> None:
    async with running(tmp_path, "--fault", "duplicate_reports=1", "--fault", "partial_fills=2") as simulator:
        async with adapter(simulator) as venue:
            await venue.submit(an_order("one", side="SELL", qty="3001"))
            reports = await read_reports(venue, 4)
        assert len(reports) == 4
        _, statement = await get(simulator, "/statement")
        assert [(line["qty"], line["intent"], line["symbol"]) for line in statement["fills"]] == [
            (1501, "SELL", "USDJPY"),
            (1500, "SELL", "USDJPY"),
        ]
        _, rest = await get(simulator, "/statement?after=1")
        assert (len(rest["fills"]), rest["last_number"]) == (1, 2)


async def test_quotes_are_served(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        status, quote = await get(simulator, "/quotes/USDJPY")
        assert status == 200
        assert 0 < quote["bid"] < quote["ask"]


async def test_open_orders_come_in_pages(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator, adapter(simulator) as venue:
        # In pages too: of a thousand requests at once, the last ones wait longer on a slow machine than one may.
        for first in range(0, 1001, 50):
            page = range(first, min(first + 50, 1001))
            outcomes = await asyncio.gather(*(venue.submit(an_order(f"order-{n}", price=FAR)) for n in page))
            assert [type(outcome) for outcome in outcomes] == [Accepted] * len(page)
        await venue.cancel(an_order("order-7"))
        _, answer = await get(simulator, "/orders?open=true")
        assert (len(answer["orders"]), answer["next"] is None) == (500, False)
        found = await open_orders(venue)
        assert sorted(order.venue_client_order_id for order in found) == sorted(
            f"order-{n}" for n in range(1001) if n != 7
        )


async def test_a_post_only_order_rests_and_a_gtd_order_ends_also_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as simulator:
        crossing = a_body("crossing", type="LIMIT", time_in_force="GTC", limit_price=1000, post_only=True)
        status, response = await post_order(simulator, crossing, "crossing")
        assert (status, response["error"]) == (400, "POST_ONLY_WOULD_TRADE")
        end = datetime.now(UTC) + timedelta(seconds=2)
        resting = a_body(
            "resting", type="LIMIT", time_in_force="GTD", limit_price=1, post_only=True, good_till=end.isoformat()
        )
        assert (await post_order(simulator, resting, "resting"))[1]["status"] == "accepted"
        simulator.kill()
        await simulator.start()

        async def has_ended() -> bool:
            return bool((await get(simulator, "/orders/resting"))[1]["status"] == "expired")

        await until(has_ended, lambda: "it is still open")
        iceberg = a_body("iceberg", type="LIMIT", time_in_force="GTC", limit_price=1, display_qty=100)
        status, response = await post_order(simulator, iceberg, "iceberg")
        assert (status, response["error"]) == (400, "UNSUPPORTED")
