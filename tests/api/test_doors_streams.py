"""Streams end with their token, and an account has a limited number of them."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from switchyard.client import ApiError, AsyncClient, OrderUpdate
from switchyard.entrypoints.http import streams
from switchyard.entrypoints.http.transport import auth
from switchyard.entrypoints.http.transport.auth import TokenVerifier, issue_token
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.memory.clock import ManualClock
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.process import SECRET
from tests.support.raw_requests import RawConnection, ask, connection

pytestmark = pytest.mark.usefixtures("no_logged_errors")


def token(gateway: RunningGateway, ttl: timedelta, account: str = "demo") -> str:
    # Whole seconds, as in every token: a lifetime of 2 s ends after 1 to 2 s.
    return issue_token(SECRET, account, clock=gateway.engine.wall_clock, ttl=ttl)


async def open_stream(opened: RawConnection, bearer: str, path: str = "/stream") -> int:
    answer = await opened.ask(f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {bearer}")
    return answer.status


async def rest_of(opened: RawConnection) -> str:
    """Everything until the end of the response, which must be a complete one."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        return (await opened.reader.readuntil(b"\r\n0\r\n\r\n")).decode()


@pytest.mark.parametrize("kind", ["account", "order"])
async def test_a_stream_ends_with_its_token_and_says_so(gateway: RunningGateway, kind: str) -> None:
    order_id = (await gateway.place(type="LIMIT", price=1)).json["orderId"]
    path = "/stream" if kind == "account" else f"/orders/{order_id}/stream"
    async with connection(gateway.url) as opened, connection(gateway.url) as lasting:
        assert await open_stream(opened, token(gateway, timedelta(seconds=2)), path) == 200
        assert await open_stream(lasting, gateway.token(), path) == 200
        text = await rest_of(opened)
        last = text[text.rindex("event: ") :].splitlines()
        assert last[0] == "event: token_expired"
        assert json.loads(last[1].removeprefix("data: "))["reason"] == "TOKEN_EXPIRED"
        assert "id:" not in text[text.rindex("event: ") - 4 :]
        # The stream of the same account with a token that is still valid goes on.
        await gateway.place()
        async with asyncio.timeout(DEADLINE_SECONDS):
            if kind == "account":
                await lasting.reader.readuntil(b"event: execution_report")
        assert gateway.engine.hub.subscribers == 1


async def test_a_stream_is_told_that_the_gateway_stops(embedded: RunningGateway) -> None:
    async with connection(embedded.url) as opened:
        assert await open_stream(opened, embedded.token(), "/stream") == 200
        embedded.engine.hub.close()  # as SIGTERM does, before the server stops
        text = await rest_of(opened)
    last = text[text.rindex("event: ") :].splitlines()
    assert last[0] == "event: server_closing"
    assert json.loads(last[1].removeprefix("data: "))["reason"] == "SERVER_CLOSING"
    assert "id:" not in text[text.rindex("event: ") - 4 :]


async def test_a_reader_that_reads_nothing_is_disconnected_when_its_token_expires(
    embedded: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FINISH_SECONDS", 0.05)
    async with connection(embedded.url) as opened:
        assert await open_stream(opened, token(embedded, timedelta(seconds=2))) == 200
        opened.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: embedded.engine.hub.subscribers == 0)


async def test_the_client_continues_with_a_new_token_where_the_stream_ended(embedded: RunningGateway) -> None:
    seen: list[str] = []
    with pytest.raises(ApiError) as raised:
        async with AsyncClient(embedded.url, token(embedded, timedelta(seconds=2))) as client:
            async for event in client.stream():
                seen.append(event.message.event)
                last_event_id = event.id
    assert (raised.value.status, raised.value.reason) == (401, "TOKEN_EXPIRED")
    assert seen[-1] == "token_expired"
    order_id = (await embedded.place()).json["orderId"]
    async with AsyncClient(embedded.url, embedded.token()) as client, asyncio.timeout(DEADLINE_SECONDS):
        events = client.stream(last_event_id=last_event_id)
        async for event in events:
            if isinstance(event, OrderUpdate):
                assert event.order.order_id == order_id
                break
        await events.aclose()


async def test_a_stream_ends_when_the_wall_clock_is_set_past_the_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EXPIRY_CHECK_SECONDS_MAX", 0.01)
    clock = ManualClock()
    endpoint = streams.StreamEndpoint(None, None, clock=clock)  # type: ignore[arg-type]
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(endpoint._ends_before(clock.now() + timedelta(hours=1), {never}))
    await asyncio.sleep(0)
    clock.step(timedelta(hours=2))
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert not await waiting


def test_an_expired_token_leaves_the_memory() -> None:
    clock = ManualClock()
    verifier = TokenVerifier(SECRET, clock=clock)
    for number in range(100):
        short = issue_token(SECRET, f"account-{number}", clock=clock, ttl=timedelta(seconds=30))
        verifier.verify(b"Bearer " + short.encode())
    clock.advance(timedelta(seconds=auth.SWEEP_SECONDS))
    verifier.verify(b"Bearer " + issue_token(SECRET, "other", clock=clock, ttl=timedelta(hours=1)).encode())
    assert len(verifier._verified) == 1


async def test_a_cached_token_is_rejected_once_it_has_expired(gateway: RunningGateway) -> None:
    header = f"Authorization: Bearer {token(gateway, timedelta(seconds=2))}"
    async with connection(gateway.url) as opened:
        assert (await opened.ask("GET /orders HTTP/1.1", "Host: localhost", header)).status == 200

        async def is_rejected() -> bool:
            answer = await opened.ask("GET /orders HTTP/1.1", "Host: localhost", header)
            return answer.status == 401 and answer.reason == "TOKEN_EXPIRED"

        await until(is_rejected)


async def test_an_account_has_a_limited_number_of_streams(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_STREAMS_PER_ACCOUNT_MAX="2") as gateway:
        order_id = (await gateway.place()).json["orderId"]
        async with connection(gateway.url) as first, connection(gateway.url) as second:
            assert await open_stream(first, gateway.token()) == 200
            assert await open_stream(second, gateway.token(), f"/orders/{order_id}/stream") == 200
            for path in ("/stream", f"/orders/{order_id}/stream"):
                rejected = await gateway.get(path)
                assert (rejected.status, rejected.json["reason"]) == (429, "TOO_MANY_STREAMS")
                assert rejected.headers["Retry-After"] == "1"
            async with connection(gateway.url) as other:
                assert await open_stream(other, gateway.token("other")) == 200
            # A request that waits for the broker is no stream of its account.
            assert (await gateway.place(account="demo")).status == 202
        await until(lambda: gateway.engine.hub.subscribers == 0)
        async with connection(gateway.url) as again:
            assert await open_stream(again, gateway.token()) == 200
            assert (await ask(gateway.url, "GET /health HTTP/1.1", "Host: x")).status == 200
