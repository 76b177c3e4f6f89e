"""What every request passes before it is routed: host, origin, media type, codings, path; headers of every answer."""

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from switchyard.entrypoints.http.app import build_gateway
from tests.support.do_order import body as do_body
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.raw_requests import RawResponse, ask, connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

ORDER = b'{"symbol":"USDJPY","side":"BUY","type":"MARKET","qty":1000}'
DO_ORDER = json.dumps(do_body("door")).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgres"])
async def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningGateway]:
    """One gateway for all tests on each database, under one more name."""
    settings = {"SWITCHYARD_ALLOWED_HOSTS": "orders.example.com", "DO_RATE_PER_MIN": "100000"}
    if request.param == "postgres":
        settings["SWITCHYARD_DATABASE_URL"] = request.getfixturevalue("postgres_server").create_database()
    async with running_gateway(tmp_path_factory.mktemp("doors"), **settings) as running:
        yield running


async def place(gateway: RunningGateway, *headers: str, order: bytes = ORDER, version: str = "1.1") -> RawResponse:
    """Post an order with a valid token and exactly these further headers."""
    token = f"Authorization: Bearer {gateway.token()}"
    length = f"Content-Length: {len(order)}"
    return await ask(gateway.url, f"POST /orders HTTP/{version}", token, length, *headers, body=order)


async def orders_in(gateway: RunningGateway) -> int:
    return len((await gateway.get("/orders?limit=500")).json["orders"])


JSON = "Content-Type: application/json"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8081",
        "localhost.",
        "127.0.0.1:1",
        "[::1]:8081",
        "[0:0:0:0:0:0:0:1]",
        "orders.example.com",
        "Orders.Example.COM:443",
    ],
)
async def test_a_configured_host_is_served(shared: RunningGateway, host: str) -> None:
    assert (await place(shared, f"Host: {host}", JSON)).status == 202


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.orders.example.com",
        "orders.example.com.evil.example:8081",
        "127.0.0.2",
        "0.0.0.0",
        "2130706433",
        "[::2]",
    ],
)
async def test_another_host_is_421_and_places_nothing(shared: RunningGateway, host: str) -> None:
    before = await orders_in(shared)
    answer = await place(shared, f"Host: {host}", JSON)
    assert (answer.status, answer.reason) == (421, "HOST_NOT_ALLOWED")
    for path in ("/orders", "/stream", "/accounts/demo/events", "/nowhere", "/"):
        answer = await ask(shared.url, f"GET {path} HTTP/1.1", f"Host: {host}")
        assert (answer.status, answer.reason) == (421, "HOST_NOT_ALLOWED")
    answer = await ask(
        shared.url,
        "POST /do/order HTTP/1.1",
        f"Host: {host}",
        JSON,
        "Idempotency-Key: door",
        f"Content-Length: {len(DO_ORDER)}",
        body=DO_ORDER,
    )
    assert (answer.status, json.loads(answer.body)["error"]) == (421, "HOST_NOT_ALLOWED")
    assert await orders_in(shared) == before
    assert (await shared.get("/orders", account="do")).json["orders"] == []


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_probes_and_scrapers_may_use_any_host_name(shared: RunningGateway, path: str) -> None:
    assert (await ask(shared.url, f"GET {path} HTTP/1.1", "Host: 10.1.2.3:8081")).status == 200


@pytest.mark.parametrize("path", ["/health%2f..%2forders", "/health/../orders", "/metrics%2f..%2forders", "/metrics/"])
async def test_a_path_that_only_looks_like_a_probe_reaches_no_other_route(shared: RunningGateway, path: str) -> None:
    answer = await ask(shared.url, f"GET {path} HTTP/1.1", "Host: evil", f"Authorization: Bearer {shared.token()}")
    assert answer.status in (404, 421)


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["Host: localhost", "Host: localhost"],
        ["Host: localhost", "Host: evil.example"],
        ["Host:"],
        ["Host: local host"],
        ["Host: localhost/orders"],
        ["Host: user@localhost"],
        ["Host: localhost:x"],
        ["Host: [::1"],
        ["Host: localhost, evil.example"],
    ],
)
async def test_a_missing_repeated_or_malformed_host_is_400(shared: RunningGateway, hosts: list[str]) -> None:
    answer = await place(shared, *hosts, JSON)
    assert (answer.status, answer.reason) == (400, "INVALID_HOST")
    assert (await ask(shared.url, "GET /health HTTP/1.1", *hosts)).status == 400


async def test_http_1_0_needs_no_host(shared: RunningGateway) -> None:
    assert (await ask(shared.url, "GET /orders HTTP/1.0", f"Authorization: Bearer {shared.token()}")).status == 200
    assert (await ask(shared.url, "GET /orders HTTP/1.0", "Host: evil.example")).status == 421


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/orders", "localhost", 200),
        ("HTTP://LOCALHOST:80/orders?limit=1", "evil.example", 200),
        ("https://orders.example.com/orders", "x", 200),
        ("http://evil.example/orders", "localhost", 421),
        ("http://evil.example", "localhost", 421),
        ("http://localhost?limit=1", "localhost", 200),
        ("http://localhost@evil.example/orders", "localhost", 400),
        ("//localhost/orders", "localhost", 404),
        ("*", "localhost", 404),
    ],
)
async def test_an_absolute_target_goes_before_the_host_header(
    shared: RunningGateway, target: str, host: str, status: int
) -> None:
    token = f"Authorization: Bearer {shared.token()}"
    assert (await ask(shared.url, f"GET {target} HTTP/1.1", f"Host: {host}", token)).status == status


async def test_an_absolute_target_still_needs_one_host_header(shared: RunningGateway) -> None:
    for hosts in ([], ["Host: localhost", "Host: localhost"]):
        answer = await ask(shared.url, "GET http://localhost/orders HTTP/1.1", *hosts)
        assert (answer.status, answer.reason) == (400, "INVALID_HOST")


@pytest.mark.parametrize(
    ("target", "version", "headers", "status", "reason"),
    [
        ("http://evil.example/do/order", "1.0", [], 421, "HOST_NOT_ALLOWED"),
        ("http://evil.example/do/order", "1.0", ["Host: localhost"], 421, "HOST_NOT_ALLOWED"),
        ("http://evil.example/do/order", "1.1", ["Host: localhost", "Connection: Upgrade", "Upgrade: h2c"], 421, None),
        ("ftp://evil.example/do/order", "1.1", ["Host: localhost"], 400, "INVALID_HTTP"),
        ("ws://evil.example/do/order", "1.1", ["Host: localhost"], 400, "INVALID_HTTP"),
        ("httpx://evil.example/do/order", "1.1", ["Host: localhost"], 400, "INVALID_HTTP"),
        ("ftp://localhost/do/order", "1.1", ["Host: localhost"], 400, "INVALID_HTTP"),
        ("http:///do/order", "1.1", ["Host: localhost"], 400, "INVALID_HTTP"),
        ("/do/order", "0.9", ["Host: localhost"], 505, "HTTP_VERSION_NOT_SUPPORTED"),
        ("/do/order", "2.0", ["Host: localhost"], 505, "HTTP_VERSION_NOT_SUPPORTED"),
        ("/do/order", "2.0", ["Host: localhost", "Connection: Upgrade", "Upgrade: h2c"], 505, None),
        # Without its Upgrade header it is still HTTP/1.0, which needs a token.
        ("/do/order", "1.0", ["Host: localhost", "Connection: Upgrade", "Upgrade: h2c"], 401, None),
    ],
)
async def test_no_form_of_a_target_or_version_passes_the_checks(
    shared: RunningGateway, target: str, version: str, headers: list[str], status: int, reason: str | None
) -> None:
    line, length = f"POST {target} HTTP/{version}", f"Content-Length: {len(DO_ORDER)}"
    answer = await ask(shared.url, line, *headers, JSON, "Idempotency-Key: door", length, body=DO_ORDER)
    assert answer.status == status
    assert reason in (None, answer.reason)
    assert (await shared.get("/orders", account="do")).json["orders"] == []


@pytest.mark.parametrize("path", ["/orders/", "/health/", "/do/order/", "//orders", "/orders//"])
async def test_no_answer_redirects(shared: RunningGateway, path: str) -> None:
    for method in ("GET", "POST"):
        answer = await ask(shared.url, f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Length: 0")
        assert "location" not in answer.headers
        assert 400 <= answer.status < 500


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost:3000",
        "http://localhost",
        "http://127.0.0.1",
        "https://orders.example.com:3000",
        "file://",
        "evil",
    ],
)
async def test_a_foreign_origin_may_not_change_anything(shared: RunningGateway, origin: str) -> None:
    before = await orders_in(shared)
    answer = await place(shared, "Host: localhost:8081", JSON, f"Origin: {origin}")
    assert (answer.status, answer.reason) == (403, "ORIGIN_NOT_ALLOWED")
    for method, path in [("POST", "/orders/x/cancel"), ("DELETE", "/orders"), ("POST", "/do/order")]:
        answer = await ask(
            shared.url,
            f"{method} {path} HTTP/1.1",
            "Host: localhost:8081",
            f"Origin: {origin}",
            JSON,
            "Idempotency-Key: door",
            f"Content-Length: {len(DO_ORDER)}",
            body=DO_ORDER,
        )
        assert (answer.status, answer.reason) == (403, "ORIGIN_NOT_ALLOWED")
    assert await orders_in(shared) == before
    assert (await shared.get("/orders", account="do")).json["orders"] == []


@pytest.mark.parametrize("origin", ["http://localhost:8081", "HTTPS://LOCALHOST:8081", "https://orders.example.com"])
async def test_an_own_origin_may_place_orders(shared: RunningGateway, origin: str) -> None:
    assert (await place(shared, "Host: localhost:8081", JSON, f"Origin: {origin}")).status == 202


async def test_two_origins_are_foreign(shared: RunningGateway) -> None:
    own = "Origin: http://localhost"
    assert (await place(shared, "Host: localhost", JSON, own, own)).status == 403


async def test_a_foreign_origin_may_read_with_a_token(shared: RunningGateway) -> None:
    token = f"Authorization: Bearer {shared.token()}"
    answer = await ask(shared.url, "GET /orders HTTP/1.1", "Host: localhost", token, "Origin: https://evil.example")
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "media_type",
    [
        [],
        ["Content-Type: text/plain"],
        ["Content-Type: application/x-www-form-urlencoded"],
        ["Content-Type: multipart/form-data; boundary=x"],
        ["Content-Type: application/octet-stream"],
        ["Content-Type: application/jsonp"],
        ["Content-Type: application/json; charset=utf-16"],
        ["Content-Type: text/plain; application/json"],
        ["Content-Type:"],
        [JSON, JSON],
    ],
)
async def test_a_body_that_is_not_json_is_415(shared: RunningGateway, media_type: list[str]) -> None:
    before = await orders_in(shared)
    answer = await place(shared, "Host: localhost", *media_type)
    assert (answer.status, answer.reason) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert json.loads(answer.body)["field"] == "Content-Type"
    answer = await ask(
        shared.url,
        "POST /do/order HTTP/1.1",
        "Host: localhost",
        *media_type,
        "Idempotency-Key: door",
        f"Content-Length: {len(DO_ORDER)}",
        body=DO_ORDER,
    )
    assert (answer.status, json.loads(answer.body)["error"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert await orders_in(shared) == before


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"'],
)
async def test_json_is_accepted_however_it_is_written(shared: RunningGateway, media_type: str) -> None:
    assert (await place(shared, "Host: localhost", f"Content-Type: {media_type}")).status == 202


async def test_a_cancel_without_a_body_needs_no_media_type(shared: RunningGateway) -> None:
    order_id = (await shared.place(type="LIMIT", price=1)).json["orderId"]
    answer = await ask(
        shared.url,
        f"POST /orders/{order_id}/cancel HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {shared.token()}",
        "Content-Length: 0",
    )
    assert answer.status == 202


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip", "identity, gzip", "x"])
async def test_a_compressed_body_is_415(shared: RunningGateway, coding: str) -> None:
    answer = await place(shared, "Host: localhost", JSON, f"Content-Encoding: {coding}")
    assert (answer.status, json.loads(answer.body)["field"]) == (415, "Content-Encoding")


async def test_the_coding_identity_is_none(shared: RunningGateway) -> None:
    assert (await place(shared, "Host: localhost", JSON, "Content-Encoding: identity")).status == 202


@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "chunked, chunked", "gzip", "identity", "xchunked", "chunked, gzip"]
)
async def test_an_unknown_transfer_coding_is_rejected_and_the_connection_closed(
    shared: RunningGateway, coding: str
) -> None:
    before = await orders_in(shared)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ORDER), ORDER)
    lines = ["POST /orders HTTP/1.1", "Host: localhost", JSON, f"Authorization: Bearer {shared.token()}"]
    async with connection(shared.url) as opened:
        answer = await opened.ask(*lines, f"Transfer-Encoding: {coding}", body=body)
        assert answer.status in (400, 501)
        assert await opened.is_closed()
    assert await orders_in(shared) == before


async def test_a_chunked_body_is_read(shared: RunningGateway) -> None:
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ORDER), ORDER)
    lines = ["POST /orders HTTP/1.1", "Host: localhost", JSON, f"Authorization: Bearer {shared.token()}"]
    assert (await ask(shared.url, *lines, "Transfer-Encoding: Chunked", body=body)).status == 202


async def test_an_encoded_separator_does_not_change_the_route(shared: RunningGateway) -> None:
    order_id = (await shared.place(type="LIMIT", price=1)).json["orderId"]
    token = f"Authorization: Bearer {shared.token()}"
    for separator in ("%2F", "%2f", "%5C", "%252F"):
        for method, path in [
            ("POST", f"/orders/{order_id}{separator}cancel"),
            ("GET", f"/orders/{order_id}{separator}events"),
            ("GET", f"/orders{separator}{order_id}"),
            ("GET", f"{separator}orders"),
            ("GET", f"/accounts/demo{separator}events"),
            ("POST", f"/do{separator}order"),
        ]:
            target = path if path.startswith("/") else "/" + path
            answer = await ask(shared.url, f"{method} {target} HTTP/1.1", "Host: localhost", token, "Content-Length: 0")
            # No route, or the route of a single order, which finds none of that name.
            assert answer.status in (404, 405), target
    assert (await shared.order(order_id))["status"] in ("ACCEPTED", "SENDING", "WORKING")


async def test_an_encoded_letter_is_the_letter(shared: RunningGateway) -> None:
    token = f"Authorization: Bearer {shared.token()}"
    assert (await ask(shared.url, "GET /%6Frders HTTP/1.1", "Host: localhost", token)).status == 200


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/", "GET, HEAD"),
        ("/health", "GET, HEAD"),
        ("/metrics", "GET, HEAD"),
        ("/orders", "GET, HEAD, POST"),
        ("/orders/x", "GET, HEAD, PATCH"),
        ("/orders/x/cancel", "POST"),
        ("/orders/cancel-all", "GET, HEAD, PATCH, POST"),
        ("/orders/x/stream", "GET, HEAD"),
        ("/stream", "GET, HEAD"),
        ("/do/order", "POST"),
        ("/admin/kill", "POST"),
        ("/dashboard/page.js", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
        ("/pdca/recheck", "POST"),
        ("/gui/strategies", "GET, HEAD"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_405_with_those_that_it_has(
    shared: RunningGateway, path: str, allow: str
) -> None:
    for method in ("DELETE", "OPTIONS", "PROPFIND"):
        answer = await ask(shared.url, f"{method} {path} HTTP/1.1", "Host: localhost")
        assert (answer.status, answer.headers.get("allow", "").upper()) == (405, allow), method


async def test_every_route_says_which_methods_it_has(shared: RunningGateway) -> None:
    for route in build_gateway(shared.engine.settings, shared.engine).routes:
        path = re.sub("{.*?}", "x", route.path)
        answer = await ask(shared.url, f"PROPFIND {path} HTTP/1.1", "Host: localhost")
        assert answer.status == 405, path
        assert route.methods is not None and route.methods <= set(answer.headers["allow"].upper().split(", ")), path


GUARDS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


@pytest.mark.parametrize(
    "lines",
    [
        ["GET /health HTTP/1.1", "Host: localhost"],
        ["GET /metrics HTTP/1.1", "Host: localhost"],
        ["GET /orders HTTP/1.1", "Host: localhost"],
        ["GET /nowhere HTTP/1.1", "Host: localhost"],
        ["DELETE /orders HTTP/1.1", "Host: localhost"],
        ["POST /orders HTTP/1.1", "Host: localhost", "Content-Length: 0"],
        ["POST /do/order HTTP/1.1", "Host: localhost", "Content-Length: 0"],
        ["GET /orders HTTP/1.1", "Host: evil"],
        ["GET /orders HTTP/1.1"],
        ["nonsense"],
        ["GET /health HTTP/1.1", "Host: localhost", "Connection: close"],
    ],
)
async def test_every_answer_forbids_guessing_keeping_and_embedding(shared: RunningGateway, lines: list[str]) -> None:
    headers = (await ask(shared.url, *lines)).headers
    assert {name: headers.get(name) for name in GUARDS} == GUARDS


async def test_an_accepted_order_and_a_stream_have_the_same_headers(shared: RunningGateway) -> None:
    headers = (await place(shared, "Host: localhost", JSON)).headers
    assert {name: headers.get(name) for name in GUARDS} == GUARDS
    async with connection(shared.url) as opened:
        token = f"Authorization: Bearer {shared.token()}"
        headers = (await opened.ask("GET /stream HTTP/1.1", "Host: localhost", token)).headers
        assert {name: headers.get(name) for name in GUARDS} == GUARDS
