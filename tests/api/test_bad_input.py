"""Malformed requests get their documented code and field, write nothing, and leave the server working."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from switchyard.entrypoints.http.transport.bodies import BODY_BYTES_MAX
from tests.support.figures import figures_of
from tests.support.gateway import RunningGateway
from tests.support.http_requests import requests_in_progress
from tests.support.polling import until

JSON_HEAD = "Host: localhost\r\nContent-Type: application/json\r\n"
GOOD = b'{"symbol":"USDJPY","side":"BUY","type":"LIMIT","qty":1000,"price":145.001}'


@pytest.fixture(autouse=True)
async def nothing_is_written(embedded: RunningGateway) -> AsyncIterator[None]:
    """Check after each bad request that the journal is empty and a good order is accepted."""
    yield
    assert await embedded.journal_seq() == 0
    assert (await embedded.place()).status == 202


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        GOOD + b"x",
        GOOD.replace(b'"qty":1000', b'"qty":NaN'),
        GOOD.replace(b'"qty":1000', b'"qty":Infinity'),
        GOOD.replace(b'"qty":1000', b'"qty":1e999'),  # some parsers read infinity
        GOOD.replace(b'"qty":1000', b'"qty":1e-999999999'),
        GOOD.replace(b'"qty":1000', b'"qty":1000,"qty":2000'),
        GOOD.replace(b'"qty":1000', b'"qty":' + b"9" * 5000),
        GOOD.replace(b"USDJPY", b"\xff\xfe"),
        GOOD.replace(b"USDJPY", b"\\ud800"),
        b"\xef\xbb\xbf" + GOOD,
        b"[" * 60_000,
        b'{"a":' * 10_000,
    ],
)
async def test_a_body_that_is_not_strict_json_is_400(embedded: RunningGateway, body: bytes) -> None:
    answer = await embedded.request("POST", "/orders", body=body)
    assert (answer.status, answer.json["reason"]) == (400, "INVALID_JSON")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ((b'"qty":1000', b'"qty":-5'), "qty"),
        ((b'"qty":1000', b'"qty":0.123456789'), "qty"),
        ((b'"qty":1000', b'"qty":1e99'), "qty"),
        ((b'"qty":1000', b'"qty":1e-99'), "qty"),
        ((b'"qty":1000', b'"qty":"1000"'), "qty"),
        ((b'"qty":1000,', b""), "qty"),
        ((b',"price":145.001', b""), "price"),
        ((b'"price"', b'"pricee"'), "pricee"),
        ((b"145.001", b"145.0001"), "price"),
        ((b'"BUY"', b'"buy"'), "side"),
        ((b"USDJPY", b"US\\u0000JPY"), "symbol"),
        ((b'"price":145.001', b'"price":145.001,"tags":"x"'), "tags"),
    ],
)
async def test_a_wrong_field_is_422_and_named(
    embedded: RunningGateway, change: tuple[bytes, bytes], field: str
) -> None:
    answer = await embedded.request("POST", "/orders", body=GOOD.replace(*change))
    assert (answer.status, answer.json["reason"], answer.json["field"]) == (422, "VALIDATION_ERROR", field)
    assert field in answer.json["message"]


async def test_a_body_over_the_limit_is_413(embedded: RunningGateway) -> None:
    answer = await embedded.request("POST", "/orders", body=GOOD + b" " * BODY_BYTES_MAX)
    assert (answer.status, answer.json["reason"]) == (413, "BODY_TOO_LARGE")


async def test_a_body_of_exactly_the_limit_is_read(embedded: RunningGateway) -> None:
    answer = await embedded.request("POST", "/orders", body=GOOD.ljust(BODY_BYTES_MAX).replace(b"BUY", b"buy"))
    assert (answer.status, answer.json["field"]) == (422, "side")


async def test_a_chunked_body_over_the_limit_is_413(embedded: RunningGateway) -> None:
    host, port = embedded.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /orders HTTP/1.1\r\n{JSON_HEAD}Authorization: Bearer {embedded.token()}\r\n"
    writer.write((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
    writer.write(b"1000\r\n" + b" " * 4096 + b"\r\n")
    for _ in range(20):
        writer.write(b"1000\r\n" + b" " * 4096 + b"\r\n")
    await writer.drain()
    assert b" 413 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize("key", ["x" * 256, "with space", "caf\u00e9"])
async def test_a_malformed_key_is_400(embedded: RunningGateway, key: str) -> None:
    answer = await embedded.request("POST", "/orders", body=GOOD, headers={"Idempotency-Key": key})
    assert (answer.status, answer.json["reason"]) == (400, "INVALID_IDEMPOTENCY_KEY")
    assert answer.json["field"] == "Idempotency-Key"


@pytest.mark.parametrize("keys", [["a", "b"], ["a", "a"], [""]])
async def test_a_repeated_or_empty_key_is_400(embedded: RunningGateway, keys: list[str]) -> None:
    host, port = embedded.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"POST /orders HTTP/1.1\r\n{JSON_HEAD}Content-Length: {len(GOOD)}\r\n"]
    lines += [f"Authorization: Bearer {embedded.token()}\r\n", *(f"Idempotency-Key: {key}\r\n" for key in keys), "\r\n"]
    writer.write("".join(lines).encode() + GOOD)
    assert b" 400 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer x", "Basic abc", "Bearer a.b.c", "bearer  ", "Bearer " + "x" * 5000]
)
async def test_a_bad_token_is_401(embedded: RunningGateway, authorization: str) -> None:
    for method, path in [("POST", "/orders"), ("GET", "/orders"), ("GET", "/stream"), ("GET", "/orders/x")]:
        answer = await embedded.request(
            method,
            path,
            account=None,
            body=GOOD if method == "POST" else None,
            headers={"Authorization": authorization},
        )
        assert (answer.status, answer.json["status"]) == (401, "UNAUTHORIZED")
        assert answer.json["reason"]


async def test_a_request_with_two_tokens_is_401(embedded: RunningGateway) -> None:
    host, port = embedded.url.removeprefix("http://").split(":")
    for line in ("POST /orders", "GET /orders", "GET /stream"):
        reader, writer = await asyncio.open_connection(host, int(port))
        tokens = "".join(f"Authorization: Bearer {embedded.token(account)}\r\n" for account in ("demo", "other"))
        length = len(GOOD) if line.startswith("POST") else 0
        writer.write(f"{line} HTTP/1.1\r\n{JSON_HEAD}{tokens}Content-Length: {length}\r\n\r\n".encode())
        writer.write(GOOD[:length])
        assert b" 401 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/orders?limit=0", "limit"),
        ("/orders?limit=501", "limit"),
        ("/orders?limit=x", "limit"),
        ("/orders?status=OPEN", "status"),
        ("/orders?side=HOLD", "side"),
        ("/orders?symbl=BTC", "symbl"),
        ("/accounts/demo/events?since=yesterday", "since"),
        ("/accounts/demo/events?after=1e400", "after"),
        ("/accounts/demo/events?limit=1001", "limit"),
        ("/accounts/demo/events?since=99999999999999999999", "since"),
    ],
)
async def test_a_wrong_query_parameter_is_422_and_named(embedded: RunningGateway, path: str, field: str) -> None:
    answer = await embedded.get(path)
    assert (answer.status, answer.json["field"]) == (422, field)


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 30])
async def test_a_malformed_last_event_id_is_400(embedded: RunningGateway, value: str) -> None:
    answer = await embedded.request("GET", "/stream", headers={"Last-Event-ID": value})
    assert (answer.status, answer.json["field"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("DELETE", "/orders", 405), ("PUT", "/orders/x", 405), ("POST", "/stream", 405)],
)
async def test_an_unknown_route_or_method_is_a_json_error(
    embedded: RunningGateway, method: str, path: str, status: int
) -> None:
    answer = await embedded.request(method, path, check=False)
    assert answer.status == status
    body: dict[str, Any] = answer.json
    assert body["reason"]


@pytest.mark.usefixtures("no_logged_errors")
async def test_a_client_that_disconnects_in_mid_body_ends_its_request_without_an_error(
    embedded: RunningGateway,
) -> None:
    host, port = embedded.url.removeprefix("http://").split(":")
    head = (
        f"POST /orders HTTP/1.1\r\n{JSON_HEAD}Authorization: Bearer {embedded.token()}\r\n"
        f"Content-Length: {len(GOOD)}\r\n\r\n"
    ).encode()
    with capture_logs() as logs:
        writers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + GOOD[:20])
            writers.append(writer)
        await until(lambda: requests_in_progress() == 20)
        for writer in writers:
            writer.close()
        await until(lambda: requests_in_progress() == 0)
    assert [line for line in logs if line["log_level"] in ("warning", "error", "critical")] == []
    figures = figures_of((await embedded.get("/metrics", account=None)).body.decode())
    assert not [name for name in figures if name.startswith("gateway_requests_refused_total")]
