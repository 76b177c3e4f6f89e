"""A gateway in front of which too many requests wait: a new order is rejected before its request is read."""

import asyncio

import pytest

from switchyard.flow.routing import window
from tests.support.gateway import RunningGateway


@pytest.fixture
def full(embedded: RunningGateway) -> RunningGateway:
    for venue in embedded.engine.window._venues.values():
        venue.waiting_max = 0
    return embedded


@pytest.fixture(autouse=True)
def no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WAITING_MIN", 0)


async def test_a_new_order_is_rejected_before_its_body_is_read(full: RunningGateway) -> None:
    for _ in range(2):  # the connection stays usable: the second request follows the unread body
        response = await full.request("POST", "/orders", body=b"{" * 5_000)
        assert (response.status, response.json["reason"]) == (503, "QUEUE_DELAY")
        assert response.headers["Retry-After"] == "1"
    assert full.engine.metrics.registry.get_sample_value("admission_turned_away_total") == 2


async def test_a_body_that_comes_after_the_answer_is_dropped(full: RunningGateway) -> None:
    """The answer is written when the head is read; what follows is not taken for another request."""
    host, port = full.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    token = f"Authorization: Bearer {full.token('demo')}"
    kind = "Content-Type: application/json\r\nContent-Length: 1000"
    head = f"POST /orders HTTP/1.1\r\nHost: {host}\r\n{token}\r\n{kind}\r\n\r\n"
    try:
        for _ in range(2):
            writer.write(head.encode())
            assert b" 503 " in await reader.readline()
            writer.write(b"GET /health HTTP/1.1\r\n\r\n".ljust(1000))
            while await reader.readline() != b"\r\n":
                pass
            body = await reader.readuntil(b"}")
            assert b"QUEUE_DELAY" in body
    finally:
        writer.close()


async def test_reading_and_cancelling_go_on(full: RunningGateway) -> None:
    assert (await full.get("/orders")).status == 200
    assert (await full.request("POST", "/orders/ord_01M7HNNEBAX8EA8GAT4GVQ2QNN/cancel")).status == 404
