"""The HTTP adapter: the outcome of every network and broker failure, by whether bytes were sent."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.adapters.venues.wire import OrderResponse, Report, encode
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import ALL_KINDS, Order
from switchyard.ports.venue import (
    SEND_LIMIT,
    Accepted,
    Ambiguous,
    Capabilities,
    Dedupe,
    Lookup,
    SendOutcome,
    Unsent,
    VenueRejected,
    VenueUnavailable,
)
from switchyard.venue import transport
from switchyard.venue.bridge import RESPONSE_SECONDS, Bridge
from switchyard.venue.transport import Pool
from switchyard.venue.wire import ANSWER_BYTES_MAX
from tests.support.memory.clock import START, ManualClock
from tests.support.polling import DEADLINE_SECONDS
from tests.support.ports import free_port
from tests.support.scripted_server import (
    Reply,
    ScriptedServer,
    hang_up,
    never_reply,
    reply,
    reset,
    scripted_server,
    then_hang_up,
)
from tests.support.second_responses import CROSSING, MOMENTS, SECOND_NAMES, SECONDS, a_broker
from tests.support.venue_orders import an_order, by_id, open_orders, unlocated

SHORT = dict.fromkeys(RESPONSE_SECONDS, 0.2)
ORDER = an_order("one", qty="1000", price="145.001")
ACCEPTED_AT = datetime(2026, 1, 5, 9, tzinfo=UTC)
ID = VenueClientOrderId("one")


def order_response(**changes: Any) -> dict[str, Any]:
    """The broker's response that shows ORDER."""
    return {
        "broker_order_id": "brk-1",
        "accepted_at": ACCEPTED_AT.isoformat(),
        "status": "accepted",
        "fills": [],
        "idempotency_key": "one",
        "client_order_id": "one",
        "symbol": "USDJPY",
        "intent": "BUY",
        "qty": 1000,
        **changes,
    }


@asynccontextmanager
async def a_venue(
    url: str, dedupe: Dedupe = "while_open", lookup: Lookup = "all", **options: Any
) -> AsyncIterator[Bridge]:
    capabilities = Capabilities(dedupe=dedupe, lookup=lookup)
    venue = http_venue(VenueName("broker"), url=url, capabilities=capabilities, clock=ManualClock(), **options)
    await venue.start()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield venue
    finally:
        await venue.close()


# Only the connections that requests need are opened, so that they can be counted.
NO_SPARES: Any = {"sends": Pool(1), "queries": Pool(1)}
# For orders at a broker whose deduplication is permanent.
REUSED = Pool(1, reuses=True)
REUSING: Any = {**NO_SPARES, "sends": REUSED}


async def submitted(*replies: Reply, order: Order = ORDER, **options: Any) -> tuple[SendOutcome, ScriptedServer]:
    async with scripted_server(*replies) as server, a_venue(server.url, **options) as venue:
        return unlocated(await venue.submit(order)), server


# Nothing was sent.


async def test_a_refused_connection_is_proven_unsent() -> None:
    async with a_venue(f"http://127.0.0.1:{free_port()}") as venue:
        for outcome in (await venue.submit(ORDER), await venue.cancel(ORDER)):
            assert isinstance(outcome, Unsent)
            assert outcome.code == "BROKER_DOWN"


async def test_an_order_that_the_broker_does_not_take_never_leaves() -> None:
    """Accepted by a gateway with other settings: a broker that ignores `stop_price` would execute it at once."""
    stop = an_order("one", order_type="STOP", time_in_force="GTC", stop="1")
    outcome, server = await submitted(reply(200, order_response()), order=stop)
    assert (outcome, server.requests) == (VenueRejected("BROKER_REJECTED", "UNSUPPORTED_BY_VENUE"), [])


async def test_a_failed_name_lookup_is_proven_unsent() -> None:
    async with a_venue("http://broker.invalid") as venue:
        assert isinstance(await venue.submit(ORDER), Unsent)


async def test_a_handshake_that_does_not_end_is_proven_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.2)
    async with (
        scripted_server(never_reply) as server,
        a_venue(server.url.replace("http", "https"), **NO_SPARES) as venue,
    ):
        assert await venue.submit(ORDER) == Unsent("BROKER_DOWN", "no connection in time")
        assert (server.connections, server.requests) == (1, [])


async def test_an_exhausted_pool_is_proven_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_server(never_reply) as server, a_venue(server.url, sends=Pool(1)) as venue:
        hanging = asyncio.create_task(venue.submit(ORDER))
        await server.arrived.wait()
        monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.2)
        assert await venue.submit(an_order("two")) == Unsent("BROKER_DOWN", "no connection in time")
        assert [body["client_order_id"] for body in server.posted] == ["one"]
        hanging.cancel()


async def test_queries_work_while_every_send_hangs() -> None:
    replies = never_reply, reply(200, order_response())
    async with scripted_server(*replies) as server, a_venue(server.url, sends=Pool(1)) as venue:
        hanging = asyncio.create_task(venue.submit(ORDER))
        await server.arrived.wait()
        assert await venue.find(by_id(ID)) is not None
        hanging.cancel()


async def test_a_venue_that_is_not_started_or_is_closed_sends_nothing() -> None:
    venue = http_venue(
        VenueName("broker"),
        url="http://127.0.0.1:1",
        capabilities=Capabilities(dedupe="permanent", lookup="all"),
        clock=ManualClock(),
    )
    assert await venue.submit(ORDER) == Unsent("VENUE_DOWN")
    await venue.start()
    await venue.close()
    assert await venue.submit(ORDER) == Unsent("VENUE_DOWN")


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        ({"Retry_After": "7"}, timedelta(seconds=7)),
        ({"Retry_After": "Mon, 05 Jan 2026 09:00:30 GMT"}, timedelta(seconds=30)),
        ({"Retry_After": "Mon, 05 Jan 2026 08:00:00 GMT"}, timedelta()),
        ({"Retry_After": "99999999999999999999"}, timedelta(hours=1)),
        ({"Retry_After": "soon"}, None),
        ({}, None),
    ],
)
async def test_a_throttled_order_is_unsent_and_carries_the_requested_pause(
    header: dict[str, str], pause: timedelta | None
) -> None:
    assert datetime.fromisoformat("2026-01-05T09:00:00Z") == START
    outcome, _ = await submitted(reply(429, **header))
    assert outcome == Unsent("RATE_LIMITED", retry_after=pause, bytes_sent=True)


# Bytes were sent, and no valid response arrived.


@pytest.mark.parametrize("response", [hang_up, reset, then_hang_up(reply(200, order_response())[:-9])])
async def test_a_connection_lost_after_bytes_were_sent_is_ambiguous(response: Reply) -> None:
    outcome, server = await submitted(response)
    assert outcome == Ambiguous("NETWORK_DISCONNECTED")
    assert len(server.requests) == 1


async def test_a_missing_response_is_ambiguous() -> None:
    outcome, server = await submitted(never_reply, response_seconds=SHORT)
    assert outcome == Ambiguous("NETWORK_TIMEOUT")
    assert len(server.requests) == 1


async def test_a_response_that_trickles_in_times_out() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.01)

    outcome, _ = await submitted(drip, response_seconds=SHORT)
    assert outcome == Ambiguous("NETWORK_TIMEOUT")


def test_an_ioc_order_has_half_the_response_time_of_the_others() -> None:
    assert dict(RESPONSE_SECONDS) == {"IOC": 2.5, "FOK": 5.0, "GTC": 5.0, "DAY": 5.0, "GTD": 5.0}


async def test_each_time_in_force_has_its_own_response_time() -> None:
    response_seconds = {**SHORT, "GTC": RESPONSE_SECONDS["GTC"]}
    async with (
        scripted_server(never_reply) as server,
        a_venue(server.url, response_seconds=response_seconds) as venue,
    ):
        slow = asyncio.create_task(venue.submit(ORDER))
        assert unlocated(await venue.submit(an_order("two"))) == Ambiguous("NETWORK_TIMEOUT")
        assert not slow.done()
        slow.cancel()


@pytest.mark.parametrize("lost", [hang_up, reset])
async def test_a_reused_connection_that_breaks_during_a_send_is_ambiguous_and_not_retried(lost: Reply) -> None:
    async with (
        scripted_server(reply(200, order_response()), lost) as server,
        a_venue(server.url, "permanent", **REUSING) as venue,
    ):
        assert await venue.submit(ORDER) == Accepted("brk-1", accepted_at=ACCEPTED_AT)
        assert unlocated(await venue.submit(an_order("two"))) == Ambiguous("NETWORK_DISCONNECTED")
        assert server.connections == 1
        assert [body["client_order_id"] for body in server.posted] == ["one", "two"]


async def test_a_connection_idle_for_too_long_is_not_reused() -> None:
    async with (
        scripted_server(reply(200, order_response())) as server,
        a_venue(server.url, "permanent", sends=replace(REUSED, idle_seconds=0.0), queries=Pool(1)) as venue,
    ):
        await venue.submit(ORDER)
        await venue.submit(ORDER)
        assert server.connections == 2


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504])
async def test_a_server_error_is_ambiguous(status: int) -> None:
    outcome, _ = await submitted(reply(status, {"error": "UNAVAILABLE"}, Retry_After="1"))
    assert outcome == Ambiguous("BROKER_5XX")


@pytest.mark.parametrize(
    "response",
    [
        reply(200, b"{"),
        reply(200, b"<html>all is well</html>"),
        reply(200, b"\xff\xfe"),
        reply(200, b'{"a":' * 100_000),
        reply(200, []),
        reply(200, {"status": "accepted"}),
        reply(200, order_response(status="excellent")),
        reply(200, order_response(broker_order_id="")),
        reply(200, order_response(broker_order_id="x" * 1000)),
        reply(200, order_response(qty="NaN")),
        reply(200, order_response(filled_qty=-1)),
        reply(200, encode(order_response()).replace(b"1000", b"1e999999")),
        reply(200, b" " * (ANSWER_BYTES_MAX + 1)),
        reply(200, gzip.compress(encode(order_response())), Content_Encoding="gzip"),
        reply(204),
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}",
        b"220 smtp.example.com ready\r\n\r\n",
        reply(404, {"error": "NO_SUCH_ROUTE"}),
        reply(408),
        reply(413),
        reply(400, b"<html>bad request from a proxy</html>"),
        reply(401),
        reply(403, b"<html>forbidden by a proxy</html>"),
        reply(422, {"detail": "no error code"}),
        reply(404, {"error": "REJECTED_BY_VENUE"}),
        reply(200, order_response(broker_order_id="brk\0")),
    ],
)
async def test_a_response_that_does_not_show_this_order_is_ambiguous(response: bytes) -> None:
    outcome, _ = await submitted(response)
    assert isinstance(outcome, Ambiguous)
    assert outcome.code == "UNKNOWN"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    outcome, server = await submitted(reply(status, Location="/elsewhere"))
    assert outcome == Ambiguous("UNKNOWN", f"HTTP {status}")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"idempotency_key": "two"},
        {"client_order_id": "two"},
        {"symbol": "EURUSD"},
        {"intent": "SELL"},
        {"qty": 999},
    ],
)
async def test_a_response_about_another_order_is_ambiguous(changes: dict[str, Any]) -> None:
    outcome, _ = await submitted(reply(200, order_response(**changes)))
    assert outcome == Ambiguous("UNKNOWN", "the answer is about another order")


# Valid responses.


@pytest.mark.parametrize("status", [200, 201, 202])
async def test_an_order_that_the_broker_shows_is_accepted(status: int) -> None:
    outcome, _ = await submitted(reply(status, order_response(status="filled", something="new")))
    assert outcome == Accepted("brk-1", accepted_at=ACCEPTED_AT)


async def test_a_response_with_only_the_required_fields_is_enough() -> None:
    optional = {"client_order_id", "symbol", "intent", "qty"}
    outcome, _ = await submitted(
        reply(200, {name: value for name, value in order_response().items() if name not in optional})
    )
    assert outcome == Accepted("brk-1", accepted_at=ACCEPTED_AT)


@pytest.mark.parametrize("status", [400, 422])
async def test_a_documented_rejection_is_final_and_has_a_reason(status: int) -> None:
    outcome, _ = await submitted(reply(status, {"error": "INVALID_QTY", "message": "no"}))
    assert outcome == VenueRejected("BAD_REQUEST", "INVALID_QTY")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_rejected_credential_is_final(status: int) -> None:
    outcome, _ = await submitted(reply(status, {"error": "NO_PERMISSION"}))
    assert outcome == VenueRejected("UNAUTHORIZED", "NO_PERMISSION")


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (400, "UNKNOWN_OUTCOME", Ambiguous("UNKNOWN", "HTTP 400")),
        (400, "INVALID_QTY", VenueRejected("BAD_REQUEST", "INVALID_QTY")),
        (403, "NO_PERMISSION", Ambiguous("UNKNOWN", "HTTP 403")),
        (418, "TEAPOT", VenueRejected("BAD_REQUEST", "TEAPOT")),
        (503, "CLOSED", VenueRejected("BAD_REQUEST", "CLOSED")),
        (503, "UNAVAILABLE", Ambiguous("BROKER_5XX")),
    ],
)
async def test_only_the_errors_that_the_broker_documents_are_final(
    status: int, code: str, outcome: SendOutcome
) -> None:
    final_errors = frozenset({(400, "INVALID_QTY"), (418, None), (503, "CLOSED")})
    sent, _ = await submitted(reply(status, {"error": code}), final_errors=final_errors)
    assert sent == outcome
    async with (
        scripted_server(reply(status, {"error": code})) as server,
        a_venue(server.url, final_errors=final_errors) as venue,
    ):
        assert unlocated(await venue.cancel(ORDER)) == outcome


async def test_a_conflict_is_rejected_only_where_it_is_documented_as_final_and_nothing_shows_the_order() -> None:
    final_errors = frozenset({(409, "ID_REUSED")})
    conflict, absent = reply(409, {"error": "ID_REUSED"}), reply(404, {"error": "UNKNOWN_ORDER"})
    outcome, _ = await submitted(conflict, absent, final_errors=final_errors)
    assert outcome == VenueRejected("CONFLICT", "ID_REUSED")
    outcome, _ = await submitted(conflict, reply(200, order_response()), final_errors=final_errors)
    assert outcome == Accepted("brk-1", already_processed=True, accepted_at=ACCEPTED_AT)


async def test_the_idempotency_header_is_sent_only_to_a_broker_that_documents_it() -> None:
    for idempotency_header in (True, False):
        _, server = await submitted(reply(200, order_response()), idempotency_header=idempotency_header)
        assert ("idempotency-key" in server.requests[0].headers) == idempotency_header


async def test_a_response_with_status_rejected_is_a_rejection() -> None:
    outcome, _ = await submitted(reply(200, order_response(status="rejected")))
    assert outcome == VenueRejected("BROKER_REJECTED")


@pytest.mark.parametrize("has_reduce_only", [True, False])
async def test_only_a_close_to_a_broker_that_has_reduce_only_orders_carries_the_flag(has_reduce_only: bool) -> None:
    capabilities = Capabilities(dedupe="permanent", lookup="all", reduce_only=has_reduce_only)
    accepted = reply(200, order_response())
    for order, is_flagged in ((replace(ORDER, reduce_only=True), has_reduce_only), (ORDER, False)):
        async with scripted_server(accepted) as server:
            venue = http_venue(VenueName("broker"), url=server.url, capabilities=capabilities, clock=ManualClock())
            await venue.start()
            assert isinstance(await venue.submit(order), Accepted)
            await venue.close()
        assert server.posted[0].get("reduce_only", "absent") == (True if is_flagged else "absent")


async def test_a_request_carries_what_the_order_asks_for_and_nothing_else() -> None:
    end = datetime(2030, 1, 31, 17, tzinfo=UTC)
    capabilities = Capabilities(
        dedupe="permanent", lookup="all", kinds=ALL_KINDS, post_only=True, reduce_only=True, display_qty=True
    )
    wishes = {"post_only": True, "reduce_only": True, "display_qty": 10, "good_till": "2030-01-31T17:00:00Z"}
    asks_all = replace(
        ORDER,
        type="LIMIT",
        price=Decimal(150),
        time_in_force="GTD",
        expires_at=end,
        post_only=True,
        display_qty=Decimal(10),
        venue_reduce_only=True,
    )
    of_the_day = replace(ORDER, time_in_force="DAY", expires_at=end)
    for order, expected in ((asks_all, wishes), (ORDER, {}), (of_the_day, {})):
        async with scripted_server(reply(200, order_response())) as server:
            venue = http_venue(VenueName("broker"), url=server.url, capabilities=capabilities, clock=ManualClock())
            await venue.start()
            await venue.submit(order)
            await venue.close()
        assert {name: value for name, value in server.posted[0].items() if name in wishes} == expected


@pytest.mark.parametrize(
    "wish", [{"post_only": True}, {"display_qty": Decimal(1)}, {"venue_reduce_only": True}, {"time_in_force": "GTD"}]
)
async def test_an_order_that_asks_for_what_the_venue_lacks_is_never_sent(wish: dict[str, Any]) -> None:
    async with scripted_server() as server:
        capabilities = Capabilities(dedupe="permanent", lookup="all")
        venue = http_venue(VenueName("broker"), url=server.url, capabilities=capabilities, clock=ManualClock())
        await venue.start()
        outcome = await venue.submit(replace(ORDER, **wish))
        await venue.close()
        assert (outcome, server.posted) == (VenueRejected("BROKER_REJECTED", "UNSUPPORTED_BY_VENUE"), [])


async def test_the_request_carries_the_id_the_trace_and_exact_amounts() -> None:
    # A binary float cannot represent either number.
    order = an_order("one", qty="123456789012345.12345678", price="999999999999999.12345678", side="SELL")
    _, server = await submitted(reply(200, b""), order=order, headers={"Authorization": "Bearer secret"})
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/orders")
    assert request.headers["idempotency-key"] == "one"
    assert request.headers["authorization"] == "Bearer secret"
    assert b'"qty":123456789012345.12345678,' in request.body
    assert b'"limit_price":999999999999999.12345678,' in request.body
    [body] = server.posted
    assert (body["idempotency_key"], body["client_order_id"]) == ("one", "one")
    assert (body["intent"], body["type"], body["time_in_force"]) == ("SELL", "LIMIT", "GTC")
    assert (body["trace_id"], body["stop_price"]) == ("ord_one", None)


# 409: processed earlier.

PROCESSED = {"error": "ALREADY_PROCESSED", "message": "processed before"}


async def test_a_conflict_that_shows_the_same_order_is_accepted() -> None:
    outcome, server = await submitted(reply(409, {**PROCESSED, "order": order_response()}))
    assert outcome == Accepted("brk-1", already_processed=True, accepted_at=ACCEPTED_AT)
    assert len(server.requests) == 1


@pytest.mark.parametrize("conflict", [PROCESSED, b"already processed", {**PROCESSED, "order": order_response(qty=1)}])
async def test_a_conflict_is_accepted_once_a_lookup_shows_the_same_order(conflict: object) -> None:
    outcome, server = await submitted(reply(409, conflict), reply(200, order_response()))
    assert outcome == Accepted("brk-1", already_processed=True, accepted_at=ACCEPTED_AT)
    assert [(request.method, request.path) for request in server.requests] == [
        ("POST", "/orders"),
        ("GET", "/orders/one"),
    ]


@pytest.mark.parametrize(
    "lookup",
    [
        reply(200, order_response(qty=999)),
        reply(200, order_response(limit_price=146)),
        reply(200, order_response(intent="SELL")),
        reply(200, order_response(symbol="EURUSD")),
        reply(200, order_response(client_order_id="two")),
        reply(404, {"error": "UNKNOWN_ORDER"}),
        reply(500),
        hang_up,
    ],
)
async def test_a_conflict_is_ambiguous_while_nothing_shows_the_same_order(lookup: Reply) -> None:
    outcome, _ = await submitted(reply(409, PROCESSED), lookup)
    assert outcome == Ambiguous("CONFLICT", "ALREADY_PROCESSED")


# What the specification of the wire shows of an order; a broker may add the others.
REQUIRED = ("broker_order_id", "accepted_at", "status", "fills", "idempotency_key")


@pytest.mark.parametrize("path", ["answer", "conflict", "lookup"])
@pytest.mark.parametrize(
    ("changes", "is_proof"),
    [
        ({}, True),
        ({"symbol": "USDJPY", "intent": "BUY", "qty": 1000}, True),
        ({"client_order_id": "one"}, True),
        ({"client_order_id": "two"}, False),
        ({"idempotency_key": "two"}, False),
        ({"symbol": "EURUSD"}, False),
        ({"intent": "SELL"}, False),
        ({"qty": 999}, False),
        ({"limit_price": 145.001, "stop_price": 7}, True),
        ({"limit_price": 145}, False),
    ],
)
async def test_the_same_members_prove_an_order_in_an_answer_a_conflict_and_a_lookup(
    path: str, changes: dict[str, object], is_proof: bool
) -> None:
    shown = {name: order_response()[name] for name in REQUIRED} | changes
    replies = {
        "answer": [reply(200, shown)],
        "conflict": [reply(409, {**PROCESSED, "order": shown}), reply(404, {"error": "UNKNOWN_ORDER"})],
        "lookup": [reply(409, PROCESSED), reply(200, shown)],
    }
    outcome, _ = await submitted(*replies[path])
    assert isinstance(outcome, Accepted if is_proof else Ambiguous)


async def test_a_conflict_without_a_lookup_is_ambiguous() -> None:
    outcome, server = await submitted(reply(409, PROCESSED), dedupe="none", lookup="none")
    assert outcome == Ambiguous("CONFLICT", "ALREADY_PROCESSED")
    assert len(server.requests) == 1


# Cancels.


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (reply(200, order_response(status="canceled")), Accepted("brk-1")),
        (reply(404, {"error": "UNKNOWN_ORDER"}), VenueRejected("UNKNOWN_ORDER")),
        (reply(409, {"error": "ORDER_FINAL"}), VenueRejected("ORDER_FINAL")),
        (reply(400, {"error": "NOT_NOW"}), VenueRejected("BAD_REQUEST", "NOT_NOW")),
        (reply(429), Unsent("RATE_LIMITED", bytes_sent=True)),
        (reply(503), Ambiguous("BROKER_5XX")),
        (hang_up, Ambiguous("NETWORK_DISCONNECTED")),
        (reply(404), Ambiguous("UNKNOWN", "HTTP 404")),
        (reply(409), Ambiguous("UNKNOWN", "HTTP 409")),
        (reply(200, order_response(idempotency_key="two")), Ambiguous("UNKNOWN", "the answer is not about this order")),
        (reply(200, b"ok"), Ambiguous("UNKNOWN", "the answer is not about this order")),
    ],
)
async def test_a_cancel_has_the_same_kinds_of_outcome_as_an_order(response: Reply, outcome: SendOutcome) -> None:
    async with scripted_server(response) as server, a_venue(server.url) as venue:
        assert unlocated(await venue.cancel(ORDER)) == outcome
        [request] = server.requests
        assert (request.method, request.path) == ("POST", "/orders/one/cancel")


async def test_a_cancel_does_not_carry_the_orders_idempotency_key() -> None:
    """A broker that repeats the first answer to a key would answer with the order, and cancel nothing."""
    shown = reply(200, order_response())
    async with scripted_server(shown, shown) as server, a_venue(server.url) as venue:
        await venue.submit(ORDER)
        await venue.cancel(ORDER)
        assert ["idempotency-key" in request.headers for request in server.requests] == [True, False]


# Queries.


async def test_an_order_is_absent_only_if_the_broker_says_so() -> None:
    async with scripted_server(reply(404, {"error": "UNKNOWN_ORDER"})) as server, a_venue(server.url) as venue:
        assert await venue.find(by_id(ID)) is None


@pytest.mark.parametrize(
    "response",
    [
        reply(404),
        reply(404, b"<html>not found</html>"),
        reply(404, {"error": "NO_SUCH_ROUTE"}),
        reply(200, b"{}"),
        reply(200, order_response(client_order_id="two")),
        reply(401),
        reply(429),
        reply(503, {"error": "UNKNOWN_ORDER"}),
        hang_up,
    ],
)
async def test_any_other_response_means_that_the_venue_is_unavailable(response: Reply) -> None:
    async with scripted_server(response) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable, match="broker"):
            await venue.find(by_id(ID))


async def test_queries_to_a_broker_that_is_down_raise_unavailable() -> None:
    async with a_venue(f"http://127.0.0.1:{free_port()}") as venue:
        with pytest.raises(VenueUnavailable):
            await venue.find(by_id(ID))
        with pytest.raises(VenueUnavailable):
            await open_orders(venue)
        with pytest.raises(VenueUnavailable):
            await venue.reports("7", 100)


async def test_without_a_lookup_no_request_is_sent() -> None:
    absent = reply(404, {"error": "UNKNOWN_ORDER"})
    async with scripted_server(absent) as server, a_venue(server.url, dedupe="none", lookup="none") as venue:
        assert venue.capabilities.lookup == "none"
        with pytest.raises(VenueUnavailable):
            await venue.find(by_id(ID))
        assert server.requests == []


async def test_open_orders_are_read_page_by_page() -> None:
    pages = [
        reply(200, {"orders": [order_response()], "next": "a b"}),
        reply(200, {"orders": [order_response(idempotency_key="two", client_order_id="two")], "next": None}),
    ]
    async with scripted_server(*pages) as server, a_venue(server.url) as venue:
        assert [order.venue_client_order_id for order in await open_orders(venue)] == ["one", "two"]
        assert [request.path for request in server.requests] == ["/orders?open=true", "/orders?open=true&after=a%20b"]


@pytest.mark.parametrize("second", [reply(500), reply(200, {"orders": [{}]}), hang_up])
async def test_an_incomplete_list_of_open_orders_is_not_returned(second: Reply) -> None:
    first = reply(200, {"orders": [order_response()], "next": "2"})
    async with scripted_server(first, second) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await open_orders(venue)


async def test_open_orders_have_no_largest_number_of_pages() -> None:
    pages = [reply(200, {"orders": [order_response()], "next": str(number)}) for number in range(300)]
    async with (
        scripted_server(*pages, reply(200, {"orders": [order_response()]})) as server,
        a_venue(server.url) as venue,
    ):
        assert len(await open_orders(venue)) == 301
        assert len(server.requests) == 301


@pytest.mark.parametrize("cursors", [["1", "1"], ["1", "2", "1"]])
async def test_a_cursor_of_open_orders_that_does_not_advance_is_an_error(cursors: list[str]) -> None:
    pages = [reply(200, {"orders": [], "next": cursor}) for cursor in cursors]
    async with scripted_server(*pages) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable, match="does not end"):
            await open_orders(venue)
        assert len(server.requests) == len(cursors)


# Reports.


def a_report(**changes: Any) -> dict[str, Any]:
    return {
        "exec_id": "brk-1-1",
        "client_order_id": "one",
        "broker_order_id": "brk-1",
        "status": "partially_filled",
        "last_qty": 10.50,
        "last_price": 145.001,
        "filled_qty": 20,
        "at": "2026-01-05T09:00:00Z",
        **changes,
    }


async def test_reports_are_converted_to_domain_reports() -> None:
    sent_page = {"reports": [a_report()], "last_number": 8}
    async with scripted_server(reply(200, sent_page)) as server, a_venue(server.url) as venue:
        page = await venue.reports("7", 100)
        [report] = page.reports
        assert page.cursor == "8"
        assert server.requests[0].path == "/reports?after=7&limit=100"
    assert (report.venue, report.venue_client_order_id, report.venue_order_id) == ("broker", "one", "brk-1")
    assert (report.status, report.at) == ("PARTIALLY_FILLED", START)
    amounts = (report.last_qty, report.last_price, report.filled_qty_total)
    assert [str(amount) for amount in amounts] == ["10.5", "145.001", "20"]


@pytest.mark.parametrize(
    "response",
    [
        reply(200, b"{"),
        reply(200, {"reports": []}),
        reply(200, {"reports": [], "last_number": -1}),
        reply(200, b'{"reports": [{], "last_number": 9}'),
        reply(503),
        reply(401),
        hang_up,
    ],
)
async def test_an_error_is_not_an_empty_page_of_reports(response: Reply) -> None:
    async with scripted_server(response) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await venue.reports("7", 100)


async def test_an_empty_page_of_reports_does_not_move_the_cursor() -> None:
    async with (
        scripted_server(reply(200, {"reports": [], "last_number": 12})) as server,
        a_venue(server.url) as venue,
    ):
        page = await venue.reports("7", 100)
        assert (list(page.reports), page.cursor, page.restarted) == ([], "7", False)


@pytest.mark.parametrize(
    "bad",
    [
        a_report(last_qty="NaN"),
        a_report(status="odd"),
        a_report(exec_id="brk\0"),
        a_report(client_order_id=""),
        a_report(at="yesterday"),
        a_report(fee="NaN"),
        a_report(fee=0.123456789),
        a_report(fee=-1e15),
        a_report(fee="free"),
        a_report(fee_currency=""),
        a_report(fee_currency="USD\n"),
        a_report(exec_type="RESTATED"),
        a_report(ref_exec_id="brk\0"),
        {"note": "x\u2028" * 5_000},
        [],
        17,
    ],
)
async def test_a_report_that_cannot_be_read_does_not_hold_up_the_others(bad: object) -> None:
    sent_page = {"reports": [a_report(exec_id="1"), bad, a_report(exec_id="3")], "last_number": 10}
    async with scripted_server(reply(200, sent_page)) as server, a_venue(server.url) as venue:
        page = await venue.reports("7", 100)
    assert [report.exec_id for report in page.reports] == ["1", "3"]
    assert page.cursor == "10"
    [unreadable] = page.unreadable
    assert unreadable.error
    assert unreadable.text.isprintable()
    assert 0 < len(unreadable.text) <= 2_000


@pytest.mark.parametrize("fee", ["1.25", "-0.00000001", "0", "-3"])
async def test_fee_and_kind_of_an_execution_are_read(fee: str) -> None:
    optional = {"fee": Decimal(fee), "fee_currency": "USD", "exec_type": "CORRECT", "ref_exec_id": "brk-0"}
    sent_page = encode({"reports": [a_report(**optional), a_report()], "last_number": 9})
    async with scripted_server(reply(200, sent_page)) as server, a_venue(server.url) as venue:
        revised, plain = (await venue.reports("7", 100)).reports
    assert {name: getattr(revised, name) for name in optional} == optional
    assert [getattr(plain, name) for name in optional] == [None] * 4


async def test_the_fee_of_a_fill_is_read_from_a_lookup() -> None:
    fill = {"exec_id": "1", "qty": 1000, "price": 145, "at": "2026-01-05T09:00:00Z"}
    charged = {**fill, "exec_id": "2", "fee": -0.5, "fee_currency": "JPY", "exec_type": "FILL"}
    response = order_response(status="filled", filled_qty=2000, fills=[fill, charged])
    async with scripted_server(reply(200, response)) as server, a_venue(server.url) as venue:
        found = await venue.find(by_id(ID))
    assert found is not None
    assert [(one.fee, one.fee_currency, one.exec_type) for one in found.fills] == [
        (None, None, None),
        (Decimal("-0.5"), "JPY", "FILL"),
    ]


async def test_a_reason_in_a_report_can_be_stored() -> None:
    sent_page = {"reports": [a_report(reason="no\0money")], "last_number": 8}
    async with scripted_server(reply(200, sent_page)) as server, a_venue(server.url) as venue:
        [report] = (await venue.reports("7", 100)).reports
    assert report.reason == "no\N{REPLACEMENT CHARACTER}money"


@pytest.mark.parametrize("reports", [[], [a_report()]])
async def test_report_numbers_that_start_again_are_noticed(reports: list[object]) -> None:
    sent_page = {"reports": reports, "last_number": len(reports)}
    async with scripted_server(reply(200, sent_page)) as server, a_venue(server.url) as venue:
        page = await venue.reports("7", 100)
    assert page.restarted
    assert page.cursor == str(len(reports))
    assert len(page.reports) == len(reports)


# The wire and the port.


def test_amounts_on_the_wire_are_exact_numbers() -> None:
    amount = Decimal("123456789012345.12345678")
    report = Report(
        exec_id="1",
        client_order_id="1",
        broker_order_id="1",
        status="filled",
        at=START,
        last_qty=amount,
        last_price=Decimal("0.00000001"),
    )
    text = encode(report)
    assert b'"last_qty":123456789012345.12345678' in text
    assert msgspec.json.decode(text, type=Report) == report
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=OrderResponse)


@pytest.mark.parametrize(
    "answer",
    [
        reply(404, b"<html>not found</html>"),
        reply(404, {"error": "NO_ROUTE"}),
        reply(200, b"<html>maintenance</html>"),
        reply(200, {}),
        reply(502, b""),
    ],
)
async def test_a_proxy_that_answers_for_its_broker_is_no_answer_to_a_probe(answer: bytes) -> None:
    async with scripted_server(answer) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await venue.probe()


async def test_an_answer_from_a_cache_is_no_answer() -> None:
    absent = reply(404, {"error": "UNKNOWN_ORDER"}, Age="7")
    async with scripted_server(absent) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await venue.probe()
        with pytest.raises(VenueUnavailable):
            await venue.find(by_id(ORDER.venue_client_order_id))
        assert {request.headers["cache-control"] for request in server.requests} == {"no-cache, no-store"}


async def test_every_probe_asks_for_another_id() -> None:
    absent = reply(404, {"error": "UNKNOWN_ORDER"})
    async with scripted_server(absent) as server:
        venue = http_venue(
            VenueName("broker"),
            url=server.url,
            capabilities=Capabilities(dedupe="none", lookup="all"),
            clock=SystemClock(),
        )
        await venue.start()
        await venue.probe()
        await asyncio.sleep(0.002)  # the id has milliseconds
        await venue.probe()
        await venue.close()
        assert len({request.path for request in server.requests}) == 2


async def test_a_broker_without_a_lookup_may_answer_a_probe_with_any_404() -> None:
    async with scripted_server(reply(404, b"")) as server, a_venue(server.url, lookup="none") as venue:
        assert await venue.probe() == "answered"


async def test_a_busy_broker_answers_a_probe() -> None:
    async with scripted_server(reply(429, b"")) as server, a_venue(server.url) as venue:
        assert await venue.probe() == "busy"


@pytest.mark.parametrize("answer", [reply(503, b""), reply(400, {"error": "REQUEST_EXPIRED"}), hang_up])
async def test_doubt_names_the_address_that_the_order_went_to(answer: Reply) -> None:
    async with scripted_server(answer) as server, a_venue(server.url) as venue:
        for outcome in (await venue.submit(ORDER), await venue.cancel(ORDER)):
            assert isinstance(outcome, Ambiguous)
            assert outcome.address == server.url.removeprefix("http://")


def test_connections_are_reused_only_where_a_repeated_order_does_no_harm() -> None:
    with pytest.raises(AssertionError, match="second response"):
        http_venue(
            VenueName("broker"),
            url="http://127.0.0.1:1",
            capabilities=Capabilities(dedupe="while_open", lookup="all"),
            clock=ManualClock(),
            sends=REUSED,
        )


def test_response_times_beyond_the_send_limit_are_rejected() -> None:
    with pytest.raises(AssertionError):
        http_venue(
            VenueName("broker"),
            url="http://127.0.0.1:1",
            capabilities=Capabilities(dedupe="while_open", lookup="all"),
            clock=ManualClock(),
            response_seconds={**RESPONSE_SECONDS, "GTC": SEND_LIMIT.total_seconds()},
        )


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("second", SECONDS, ids=SECOND_NAMES)
@pytest.mark.parametrize("dedupe", ["none", "while_open"])
async def test_a_second_response_is_never_the_answer_to_the_next_order(
    dedupe: Dedupe, second: bytes, moment: str
) -> None:
    async with (
        a_broker([moment], [second]) as broker,
        a_venue(f"http://127.0.0.1:{broker.port}", dedupe=dedupe) as venue,
    ):
        outcomes = [await venue.submit(an_order(f"order-{number}")) for number in range(10)]
    # What crosses the request comes before its answer: then neither is believed.
    assert {type(outcome) for outcome in outcomes} == {Ambiguous if moment == CROSSING else Accepted}
    assert broker.executions.total() == 10


async def test_a_second_response_is_never_the_answer_to_the_next_query() -> None:
    async with a_broker(MOMENTS[:3]) as broker, a_venue(f"http://127.0.0.1:{broker.port}") as venue:
        await venue.submit(ORDER)
        for _ in range(5):
            assert await venue.find(by_id(ORDER.venue_client_order_id)) is not None
            assert await venue.probe() == "answered"
            assert [page async for page in venue.open_orders()] == [[]]


NAMED: Any = {"error": "ANY", "client_order_id": "one"}


@pytest.mark.parametrize("status", [429, 400, 403, 422])
@pytest.mark.parametrize(
    ("body", "is_believed"), [({"error": "ANY"}, True), ({**NAMED, "client_order_id": "x"}, False)]
)
async def test_on_a_reused_connection_an_error_counts_unless_it_names_another_order(
    status: int, body: object, is_believed: bool
) -> None:
    replies = reply(200, order_response()), reply(status, body)
    async with scripted_server(*replies) as server, a_venue(server.url, "permanent", **REUSING) as venue:
        assert await venue.submit(ORDER) == Accepted("brk-1", accepted_at=ACCEPTED_AT)
        outcome = await venue.submit(ORDER)
        assert server.connections == 1
    believed = Unsent if status == 429 else VenueRejected
    assert isinstance(outcome, believed if is_believed else Ambiguous)


AMEND = Amend(client_order_id=VenueClientOrderId("two"), orig_client_order_id=ID, qty=Decimal(7), price=Decimal(1))


@pytest.mark.parametrize("named_by", [{"amended_by": "two"}, {"idempotency_key": "two", "client_order_id": "two"}])
@pytest.mark.parametrize(
    ("shown", "is_proof"),
    [
        ({"qty": 7}, True),
        ({"qty": 7, "limit_price": 1, "stop_price": 3}, True),
        ({"qty": 8}, False),
        ({"qty": 7, "limit_price": 2}, False),
    ],
)
@pytest.mark.parametrize("error", [None, "STALE_AMEND", "ORDER_FINAL", "DUPLICATE"])
async def test_an_amend_was_carried_out_only_with_the_amounts_that_the_broker_shows(
    named_by: dict[str, str], shown: dict[str, Any], is_proof: bool, error: str | None
) -> None:
    order = order_response(**shown, **named_by)
    answer = reply(200, order) if error is None else reply(409, {"error": error, "order": order})
    async with scripted_server(answer) as server, a_venue(server.url) as venue:
        assert isinstance(await venue.amend(ORDER, AMEND), Accepted if is_proof else Ambiguous)


async def test_an_order_that_an_amend_has_replaced_does_not_show_its_new_amounts() -> None:
    order = order_response(status="canceled", replaced_by="two")
    answer = reply(409, {"error": "ORDER_FINAL", "order": order})
    async with scripted_server(answer) as server, a_venue(server.url) as venue:
        assert isinstance(await venue.amend(ORDER, AMEND), Ambiguous)


# How a denial may show the order that it denies.
SHOWN: list[dict[str, Any]] = [
    {"order": order_response()},
    {"order": order_response(status="filled")},
    {"order": {"client_order_id": "one", "status": "partially_filled"}},
    {"order": order_response(status="canceled")},
    {"order": order_response(status="rejected", filled_qty=1)},
    {"order": order_response(status="rejected", fills=[{"exec_id": "e"}])},
    {"errors": [{"detail": {"orders": [order_response()]}}]},
    order_response(),
    {"status": "filled"},
    {"client_order_id": "one", "status": "ACCEPTED"},
    {"client_order_id": "one", "broker_order_id": "brk-1"},
    {"client_order_id": "one", "accepted_at": "2026-01-05T09:00:00Z"},
    {"client_order_id": "one", "fill": {"exec_id": "e", "qty": 1}},
    {"order": {"client_order_id": "two", "replaced_by": "one"}},
]


@pytest.mark.parametrize("dedupe", ["permanent", "while_open"])
@pytest.mark.parametrize("status", [429, 400, 401, 403, 422])
@pytest.mark.parametrize("shown", SHOWN)
async def test_a_denial_that_shows_the_order_as_taken_is_never_believed(
    dedupe: Dedupe, status: int, shown: dict[str, Any]
) -> None:
    outcome, _ = await submitted(reply(status, {"error": "ANY", **shown}), dedupe=dedupe)
    assert isinstance(outcome, Ambiguous)


@pytest.mark.parametrize("status", [429, 403])
@pytest.mark.parametrize("body", [{"order": order_response(status="rejected")}, {"status": "rejected"}, {"status": 7}])
async def test_a_denial_that_shows_the_order_as_rejected_counts(status: int, body: dict[str, Any]) -> None:
    outcome, _ = await submitted(reply(status, {"error": "ANY", **body}))
    assert isinstance(outcome, Unsent if status == 429 else VenueRejected)


@pytest.mark.parametrize("dedupe", ["permanent", "while_open"])
async def test_an_error_whose_headers_swallow_the_answer_is_never_believed(dedupe: Dedupe) -> None:
    outcome, _ = await submitted(
        b"HTTP/1.1 429 Too Many Requests\r\nX-Cut: " + reply(202, order_response()), dedupe=dedupe
    )
    assert isinstance(outcome, Ambiguous)


@pytest.mark.parametrize("sends", [Pool(1), REUSED])
@pytest.mark.parametrize("status", [429, 403])
async def test_an_error_with_an_answer_behind_it_is_not_believed_although_a_repeat_would_do_no_harm(
    status: int, sends: Pool
) -> None:
    outcome, _ = await submitted(reply(status, {"error": "ANY"}) + SECOND, dedupe="permanent", sends=sends)
    assert isinstance(outcome, Ambiguous)


@pytest.mark.parametrize("status", [429, 400, 403, 404, 409, 422])
@pytest.mark.parametrize(
    ("order", "is_doubt"),
    [
        ({"amended_by": "two"}, True),
        ({"status": "canceled", "replaced_by": "two"}, True),
        ({"client_order_id": "two", "idempotency_key": "two"}, True),
        ({}, False),
    ],
)
async def test_a_denial_that_shows_the_amend_as_carried_out_is_never_believed(
    status: int, order: dict[str, Any], is_doubt: bool
) -> None:
    error = "ORDER_FINAL" if status == 409 else "UNKNOWN_ORDER"
    answer = reply(status, {"error": error, "order": {**order_response(qty=8), **order}})
    async with scripted_server(answer) as server, a_venue(server.url) as venue:
        outcome = await venue.amend(ORDER, AMEND)
    assert isinstance(outcome, Ambiguous if is_doubt else VenueRejected | Unsent)


async def denied(venue: Bridge, what: str) -> bool:
    """Whether the venue is believed that it has not taken the request, or does not have the order."""
    if what == "lookup":
        try:
            found = await venue.find(by_id(ID))
            return found is None or found.status in ("REJECTED", "CANCELED", "EXPIRED")
        except VenueUnavailable:
            return False
    requests = {"order": venue.submit(ORDER), "cancel": venue.cancel(ORDER), "amend": venue.amend(ORDER, AMEND)}
    outcomes = {name: await request for name, request in requests.items() if name == what}
    for name, request in requests.items():
        if name != what:
            request.close()
    return not isinstance(outcomes[what], Accepted | Ambiguous)


# What may say that a request was not carried out.
DENIALS = [
    ("order", 429, {"error": "RATE_LIMITED"}),
    ("order", 403, {"error": "FORBIDDEN"}),
    ("order", 400, {"error": "ANY"}),
    ("order", 200, order_response(status="rejected")),
    ("cancel", 429, {"error": "RATE_LIMITED"}),
    ("cancel", 404, {"error": "UNKNOWN_ORDER"}),
    ("cancel", 409, {"error": "ORDER_FINAL"}),
    ("amend", 429, {"error": "RATE_LIMITED"}),
    ("amend", 404, {"error": "UNKNOWN_ORDER"}),
    ("amend", 409, {"error": "STALE_AMEND"}),
    ("lookup", 404, {"error": "UNKNOWN_ORDER"}),
    ("lookup", 200, order_response(status="rejected")),
    ("lookup", 200, order_response(status="canceled")),
    ("lookup", 200, order_response(status="expired")),
]
SECOND = reply(200, order_response())
ENDINGS: dict[str, Reply] = {
    "the end": then_hang_up(b""),
    "nothing": never_reply,
    "a reset": reset,
    "a byte": then_hang_up(b"H"),
    "garbage": then_hang_up(b"?\r\n\r\n"),
    "an interim response": then_hang_up(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a part of a response": then_hang_up(SECOND[:-1]),
    "a response": then_hang_up(SECOND),
}


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("names_order", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("what", "status", "body"), DENIALS)
async def test_a_denial_counts_only_if_nothing_but_the_end_of_the_connection_follows_it(
    what: str, status: int, body: Any, ending: str, names_order: bool, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker sent unasked may cross the request, and is then read before the answer."""
    monkeypatch.setattr(transport, "END_SECONDS", 20.0 if ending == "the end" else 0.1)
    answer = reply(status, {**body, "client_order_id": "one"} if names_order else body)

    async def run(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if is_split:
            await asyncio.sleep(0.01)
        await ENDINGS[ending](writer)  # type: ignore[operator]

    async with scripted_server(run) as server, a_venue(server.url) as venue:
        assert await denied(venue, what) == (ending == "the end")


@pytest.mark.parametrize(("what", "status", "body"), DENIALS)
async def test_what_a_broker_sent_unasked_on_one_connection_decides_nothing_on_the_next(
    what: str, status: int, body: Any
) -> None:
    noted: list[None] = []
    async with (
        scripted_server(reply(429) + SECOND, reply(status, body)) as server,
        a_venue(server.url, note_unasked=lambda: noted.append(None)) as venue,
    ):
        assert isinstance(await venue.submit(ORDER), Ambiguous)
        assert noted == [None]
        assert await denied(venue, what)


@pytest.mark.parametrize("status", [429, 403])
async def test_an_error_without_a_length_does_not_count_if_an_answer_follows_it(status: int) -> None:
    """Its body lasts until the end of the connection, so the answer is a part of it."""
    crossing = f"HTTP/1.1 {status} No\r\n\r\n".encode()
    for error in (b"", encode({"error": "ANY"}), encode(NAMED)):
        outcome, _ = await submitted(then_hang_up(crossing + error + SECOND))
        assert isinstance(outcome, Ambiguous)


async def test_an_error_without_a_length_does_not_count_even_alone() -> None:
    """What follows it cannot be told from it, also if it happens to be JSON."""
    alone = b"HTTP/1.1 403 No\r\n\r\n" + encode({"error": "FORBIDDEN"})
    outcome, _ = await submitted(then_hang_up(alone))
    assert isinstance(outcome, Ambiguous)


async def test_a_broker_whose_connections_are_reused_need_not_end_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "END_SECONDS", 20.0)

    async def run(writer: asyncio.StreamWriter) -> None:
        writer.write(reply(403, {"error": "FORBIDDEN"}))
        await never_reply(writer)

    outcome, _ = await submitted(run, dedupe="permanent", sends=REUSED)
    assert outcome == VenueRejected("UNAUTHORIZED", "FORBIDDEN")


async def test_on_connections_of_their_own_denials_of_such_a_broker_must_be_sure_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rejected order is not sent again, so its recognition of repeated ids would not put a wrong denial right."""
    monkeypatch.setattr(transport, "END_SECONDS", 0.1)

    async def run(writer: asyncio.StreamWriter) -> None:
        writer.write(reply(403, {"error": "FORBIDDEN"}))
        await never_reply(writer)

    outcome, _ = await submitted(run, dedupe="permanent")
    assert isinstance(outcome, Ambiguous)


@pytest.mark.parametrize("sends", [Pool(1), REUSED])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("status", "error"), [(429, "RATE_LIMITED"), (403, "FORBIDDEN"), (404, "UNKNOWN_ORDER"), (409, "STALE_AMEND")]
)
async def test_a_denied_amend_counts_only_alone_although_a_repeated_order_would_do_no_harm(
    status: int, error: str, ending: str, sends: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An amend is not sent again, so nothing would show that one was carried out that counts as refused."""
    monkeypatch.setattr(transport, "END_SECONDS", 20.0 if ending == "the end" else 0.1)

    async def run(writer: asyncio.StreamWriter) -> None:
        writer.write(reply(status, {"error": error}))
        await asyncio.sleep(0.01)
        await ENDINGS[ending](writer)  # type: ignore[operator]

    async with scripted_server(run) as server, a_venue(server.url, "permanent", sends=sends) as venue:
        assert await denied(venue, "amend") == (ending == "the end")


async def test_an_amend_has_a_connection_of_its_own_also_where_orders_share_one() -> None:
    """A second response to an order would be read as the answer to the amend."""
    amended = order_response(qty=7, limit_price=1, amended_by="two")
    replies = reply(201, order_response()), reply(200, amended), reply(201, order_response())
    async with scripted_server(*replies) as server, a_venue(server.url, "permanent", **REUSING) as venue:
        assert isinstance(await venue.submit(ORDER), Accepted)
        assert isinstance(await venue.amend(ORDER, AMEND), Accepted)
        assert server.connections == 2
        assert isinstance(await venue.submit(ORDER), Accepted)
        assert server.connections == 2
        assert [request.headers["connection"] for request in server.requests] == ["keep-alive", "close", "keep-alive"]


OTHER = order_response(idempotency_key="another", client_order_id="another")


@pytest.mark.parametrize(
    "body",
    [
        {"error": "ANY", "order": OTHER},
        {"error": "ANY", "client_order_id": "one", "order": OTHER},
        {"error": "ANY", "order": {**OTHER, "client_order_id": "one"}},
        {"error": "ANY", "message": "x" * 600, "client_order_id": "another"},
        {"code": 7, "client_order_id": "another"},
        {"errors": [{"code": 7, "client_order_id": 8}]},
        OTHER,
        b'{"error": "ANY", "client_order_id": "another", ',
        b'{"error": "ANY", "\\u0063lient_order_id"\n:\t"another"}',
        b'{"error": "ANY", "client_order_id": "another", "client_order_id": "one"}',
        b"{'error': 'ANY', 'client_order_id': 'another'}",
        '{"error": "ANY", "client_order_id": "another"}'.encode("utf-16"),
        '{"error": "ANY", "client_order_id": "another"}'.encode("utf-32-be"),
        b"<html>client_order_id: another</html>",
        b'{"a":' * 10_000,
    ],
)
@pytest.mark.parametrize("status", [429, 400, 403, 409, 422])
async def test_an_answer_that_names_another_order_anywhere_is_never_believed(status: int, body: Any) -> None:
    order_is_final = {**body, "error": "ORDER_FINAL"} if isinstance(body, dict) else body
    async with (
        scripted_server(reply(status, body), reply(status, body), reply(409, order_is_final)) as server,
        a_venue(server.url, "permanent", lookup="none") as venue,
    ):
        outcomes = [await venue.submit(ORDER), await venue.amend(ORDER, AMEND), await venue.cancel(ORDER)]
        assert [type(outcome) for outcome in outcomes] == [Ambiguous] * 3
    async with scripted_server(reply(404, body)) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await venue.find(by_id(ID))


@pytest.mark.parametrize("shown", SHOWN)
async def test_an_absence_that_shows_the_order_is_none(shown: dict[str, Any]) -> None:
    answer = reply(404, {**shown, "error": "UNKNOWN_ORDER"})
    async with scripted_server(answer) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await venue.find(by_id(ID))


@pytest.mark.parametrize("status", ["accepted", "rejected"])
async def test_an_absence_that_shows_another_order_is_none(status: str) -> None:
    answer = reply(404, {"error": "UNKNOWN_ORDER", "order": {**OTHER, "status": status}})
    async with scripted_server(answer) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await venue.find(by_id(ID))


async def test_the_successor_of_another_order_is_never_cancelled() -> None:
    ended = reply(409, {"error": "ORDER_FINAL", "order": {**OTHER, "status": "canceled", "replaced_by": "third"}})
    async with scripted_server(ended) as server, a_venue(server.url) as venue:
        assert isinstance(await venue.cancel(ORDER), Ambiguous)
        assert len(server.requests) == 1


async def test_the_answer_to_another_request_does_not_cancel_all() -> None:
    async with scripted_server(reply(200, OTHER)) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await venue.cancel_all()


@pytest.mark.parametrize("status", [429, 403])
@pytest.mark.parametrize("sends", [Pool(1), REUSED])
async def test_an_error_that_names_another_order_is_never_the_answer(status: int, sends: Pool) -> None:
    error = reply(status, {**NAMED, "client_order_id": "another"})
    outcome, _ = await submitted(error, dedupe="permanent", sends=sends)
    assert isinstance(outcome, Ambiguous)


async def test_an_unknown_order_that_was_not_asked_for_is_no_absence() -> None:
    answer = reply(404, {"error": "UNKNOWN_ORDER", "client_order_id": "another"})
    async with scripted_server(answer) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable):
            await venue.find(by_id(ORDER.venue_client_order_id))


# Orders that an amend has replaced.


async def test_a_successor_that_the_broker_names_and_does_not_show_is_unavailable_and_not_absent() -> None:
    replaced = reply(200, order_response(status="canceled", replaced_by="two"))
    unknown = reply(404, {"error": "UNKNOWN_ORDER"})
    async with scripted_server(replaced, unknown) as server, a_venue(server.url) as venue:
        with pytest.raises(VenueUnavailable, match="two"):
            await venue.find(by_id(ID))
    async with scripted_server(unknown) as server, a_venue(server.url) as venue:
        assert await venue.find(by_id(ID)) is None


async def test_the_cancel_of_a_successor_that_the_broker_does_not_show_is_tried_again() -> None:
    replaced = order_response(status="canceled", replaced_by="two")
    ended, unknown = reply(409, {"error": "ORDER_FINAL", "order": replaced}), reply(404, {"error": "UNKNOWN_ORDER"})
    async with scripted_server(ended, unknown) as server, a_venue(server.url) as venue:
        assert unlocated(await venue.cancel(ORDER)) == Unsent("REPLACED", "two", bytes_sent=True)
    async with scripted_server(unknown) as server, a_venue(server.url) as venue:
        assert await venue.cancel(ORDER) == VenueRejected("UNKNOWN_ORDER")
