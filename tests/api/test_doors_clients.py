"""What one client can take: connections, by address and behind proxies; bad tokens; orders without a token."""

import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from structlog.testing import capture_logs

from switchyard.entrypoints.http.monitoring import build_monitoring
from switchyard.entrypoints.http.transport import auth, protocol
from switchyard.entrypoints.http.transport.guard import ConnectionCaps, Proxies, do_order_needs_token, limited_as
from switchyard.entrypoints.http.transport.protocol import BoundedHttpProtocol
from switchyard.entrypoints.http.transport.server import HttpServer
from switchyard.settings import load_settings
from tests.support.cluster import Cluster
from tests.support.do_order import body as do_body
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.raw_requests import RawConnection, RawResponse, ask, connection

HEALTH = ("GET /health HTTP/1.1", "Host: localhost")
NETWORKS = load_settings({"SWITCHYARD_TRUSTED_PROXIES": "127.0.0.9, 10.0.0.0/8, fd00::/8"}).trusted_proxies


@asynccontextmanager
async def connections(url: str, count: int, source: str) -> AsyncIterator[list[RawConnection]]:
    """Open connections that are all in use: each has asked for something."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connection(url, source)) for _ in range(count)]
        for one in opened:
            assert (await one.ask(*HEALTH)).status == 200
        yield opened


async def is_rejected(url: str, source: str) -> bool:
    async with connection(url, source) as opened:
        response = await opened.response()
        assert (response.status, response.reason) == (503, "TOO_MANY_CONNECTIONS")
        return await opened.is_closed()


async def test_an_address_has_a_limited_number_of_connections(gateway: RunningGateway) -> None:
    gateway.caps.per_address_max = 3
    async with connections(gateway.url, 3, "127.0.0.2") as opened:
        assert await is_rejected(gateway.url, "127.0.0.2")
        # Others are served, and so are the connections that were there before.
        assert (await ask(gateway.url, *HEALTH, source="127.0.0.3")).status == 200
        assert (await opened[0].ask(*HEALTH)).status == 200
        metrics = await ask(gateway.url, "GET /metrics HTTP/1.1", "Host: localhost", source="127.0.0.3")
        assert b"http_connections_rejected_total 1.0" in metrics.body

    async def has_room() -> bool:
        async with connection(gateway.url, "127.0.0.2") as again:
            return (await again.ask(*HEALTH)).status == 200

    await until(has_room)


async def test_the_last_fifth_of_all_connections_is_kept_for_others(tmp_path: Path) -> None:
    settings = {"SWITCHYARD_CONNECTIONS_MAX": "100", "SWITCHYARD_CONNECTIONS_PER_ADDRESS_MAX": "100"}
    async with running_gateway(tmp_path, **settings) as gateway, connections(gateway.url, 80, "127.0.0.2"):
        assert await is_rejected(gateway.url, "127.0.0.2")
        async with connections(gateway.url, 16, "127.0.0.3"):
            assert await is_rejected(gateway.url, "127.0.0.3")
            async with connections(gateway.url, 4, "127.0.0.4"):
                assert await is_rejected(gateway.url, "127.0.0.5")


async def test_idle_connections_are_closed_earlier_while_connections_are_scarce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "CROWDED_IDLE_SECONDS_MAX", 0.05)
    monkeypatch.setattr(BoundedHttpProtocol, "request_seconds_max", 0.2)
    async with (
        running_gateway(tmp_path, SWITCHYARD_CONNECTIONS_MAX="10") as gateway,
        connections(gateway.url, 8, "127.0.0.2") as opened,
        connection(gateway.url, "127.0.0.3") as one_more,
    ):
        assert (await one_more.ask(*HEALTH)).status == 200
        assert await opened[0].is_closed()


async def test_an_old_connection_is_closed_with_an_answer(
    embedded: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "request_seconds_max", 0.2)
    monkeypatch.setattr(BoundedHttpProtocol, "connection_age_seconds_max", 0.5)
    token = f"Authorization: Bearer {embedded.token()}"
    order = b'{"symbol":"USDJPY","side":"BUY","type":"MARKET","qty":1000}'
    lines = ["POST /orders HTTP/1.1", "Host: localhost", token, "Content-Type: application/json"]
    async with connection(embedded.url) as opened:
        assert "connection" not in (await opened.ask(*HEALTH)).headers

        async def is_last() -> bool:
            answer = await opened.ask(*lines, f"Content-Length: {len(order)}", body=order)
            assert answer.status == 202
            return answer.headers.get("connection") == "close"

        await until(is_last)
        assert await opened.is_closed()


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ([], "127.0.0.9"),
        ([b"203.0.113.7"], "203.0.113.7"),
        ([b"203.0.113.7:4711"], "203.0.113.7"),
        ([b"[2001:db8::1]:4711"], "2001:db8::1"),
        # Only the entry that the trusted proxy wrote counts; a client can write any entry before it.
        ([b"198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        ([b"198.51.100.1", b"203.0.113.7"], "203.0.113.7"),
        ([b"203.0.113.7, 10.1.2.3"], "203.0.113.7"),
        ([b"203.0.113.7, 10.1.2.3, ::ffff:10.9.9.9"], "203.0.113.7"),
        ([b"203.0.113.7, nonsense"], "127.0.0.9"),
        ([b"nonsense, 10.1.2.3"], "10.1.2.3"),
        ([b""], "127.0.0.9"),
        ([b"198.51.100.1," + b"10.0.0.1," * 5000 + b"10.0.0.1"], "10.0.0.1"),
    ],
)
def test_the_client_behind_proxies_is_the_last_address_that_is_no_proxy(forwarded: list[bytes], client: str) -> None:
    assert Proxies(NETWORKS).client_of("127.0.0.9", forwarded) == client


@pytest.mark.parametrize(
    ("written", "trusted", "others"),
    [
        ("::ffff:127.0.0.9", ["127.0.0.9", "::ffff:127.0.0.9"], ["127.0.0.8", "::7f00:9"]),
        ("::ffff:10.0.0.0/104", ["10.1.2.3", "::ffff:a01:203"], ["11.0.0.1"]),
        ("::ffff:0:0/96", ["127.0.0.1", "203.0.113.7"], ["2001:db8::1"]),
        ("::/0", ["2001:db8::1"], ["127.0.0.1"]),
    ],
)
def test_a_proxy_may_be_written_as_an_ipv4_address_in_ipv6(written: str, trusted: list[str], others: list[str]) -> None:
    proxies = Proxies(load_settings({"SWITCHYARD_TRUSTED_PROXIES": written}).trusted_proxies)
    assert [proxies.trusts(address) for address in (*trusted, *others)] == [True] * len(trusted) + [False] * len(others)


def test_an_ipv6_client_is_limited_by_its_network() -> None:
    assert limited_as("2001:db8::1") == limited_as("2001:db8::ffff:1") != limited_as("2001:db8:0:1::1")
    assert limited_as("::ffff:192.0.2.1") == limited_as("192.0.2.1") != limited_as("192.0.2.2")


def test_counts_of_connections_return_to_nothing() -> None:
    caps = ConnectionCaps(total_max=10, per_address_max=2)
    assert [caps.enter("a", 1), caps.enter("a", 2), caps.enter("a", 3), caps.enter(None, 3)] == [
        True,
        True,
        False,
        True,
    ]
    caps.leave("a")
    caps.leave("a")
    assert caps._counts == {}


async def stream(opened: RawConnection, token: str, client: str) -> int:
    answer = await opened.ask(
        "GET /stream HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", f"X-Forwarded-For: {client}"
    )
    return answer.status


async def test_clients_behind_a_trusted_proxy_are_told_apart(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    settings = {"SWITCHYARD_TRUSTED_PROXIES": "127.0.0.9", "SWITCHYARD_CONNECTIONS_PER_ADDRESS_MAX": "2"}
    async with running_gateway(tmp_path, **settings, **engine_settings) as gateway, AsyncExitStack() as stack:
        proxied = [await stack.enter_async_context(connection(gateway.url, "127.0.0.9")) for _ in range(8)]
        token = gateway.token()
        assert [await stream(one, token, "203.0.113.7") for one in proxied[:4]] == [200, 200, 429, 429]
        assert [await stream(one, token, "203.0.113.8") for one in proxied[4:6]] == [200, 200]
        # A rejected request leaves its connection to the proxy usable, also for another client.
        assert await stream(proxied[2], token, "203.0.113.9") == 200
        # The header of a client that is no proxy is ignored.
        async with connections(gateway.url, 2, "127.0.0.2"):
            assert await is_rejected(gateway.url, "127.0.0.2")
        proxied[0].writer.close()

        async def has_room() -> bool:
            async with connection(gateway.url, "127.0.0.9") as again:
                return await stream(again, token, "203.0.113.7") == 200

        await until(has_room)


def wrong(**claims: Any) -> str:
    """A token that is signed with another secret."""
    return jwt.encode({"sub": "demo", "exp": 9_999_999_999, **claims}, "another secret of at least 32 bytes", "HS256")


async def test_bad_tokens_are_limited_and_a_valid_one_is_never_blocked(gateway: RunningGateway) -> None:
    async with connection(gateway.url, "127.0.0.2") as opened:

        async def try_token(token: str, path: str = "/orders") -> tuple[int, str]:
            answer = await opened.ask(f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}")
            return answer.status, answer.reason if answer.status != 200 else ""

        first = [await try_token(wrong(jti=number)) for number in range(auth.BAD_TOKENS_MAX)]
        assert set(first) == {(401, "TOKEN_INVALID")}
        for path in ("/orders", "/stream", "/orders/x", "/accounts/demo/events"):
            assert await try_token(wrong(jti="more"), path) == (429, "TOO_MANY_BAD_TOKENS")
        # New valid tokens, cached ones, and requests without a token are answered as before.
        for account in ("demo", "demo", "new"):
            assert await try_token(gateway.token(account)) == (200, "")
        answer = await opened.ask("GET /orders HTTP/1.1", "Host: localhost")
        assert (answer.status, answer.reason) == (401, "TOKEN_MISSING")
    # Another address has its own count; the contract has the answer of each route.
    other = await gateway.request("GET", "/orders", account=None, headers={"Authorization": f"Bearer {wrong()}"})
    assert other.status == 401


async def test_the_limit_counts_on_every_route_together(embedded: RunningGateway) -> None:
    headers = {"Authorization": f"Bearer {wrong()}"}
    order = do_body("k")
    for _ in range(auth.BAD_TOKENS_MAX // 2):
        answer = await embedded.request("POST", "/orders", account=None, headers=headers, body=b"{}")
        assert answer.status == 401
        answer = await embedded.request("POST", "/do/order", account=None, headers=headers, body=order)
        assert answer.status == 401
    bodies: dict[str, dict[str, Any] | None] = {"/orders": {}, "/do/order": order, "/orders/x/cancel": None}
    for path, body in bodies.items():
        answer = await embedded.request("POST", path, account=None, headers=headers, body=body)
        assert answer.status == 429
        assert 1 <= int(answer.headers["Retry-After"]) <= 60


async def test_wrong_metrics_tokens_are_limited_on_a_worker_too(embedded: RunningGateway) -> None:
    settings = msgspec.structs.replace(embedded.engine.settings, metrics_token="the right one")
    server = HttpServer(build_monitoring(settings, embedded.engine), host="127.0.0.1", port=0)
    await server.start()
    try:
        async with connection(f"http://127.0.0.1:{server.port}") as opened:

            async def scrape(token: str) -> int:
                answer = await opened.ask("GET /metrics HTTP/1.1", "Host: any", f"X-Metrics-Token: {token}")
                assert answer.headers["x-content-type-options"] == "nosniff"
                return answer.status

            statuses = [await scrape("a wrong one") for _ in range(auth.BAD_TOKENS_MAX + 1)]
            assert statuses == [401] * auth.BAD_TOKENS_MAX + [429]
            assert await scrape("the right one") == 200
    finally:
        await server.stop(grace_seconds=5.0)


async def test_bad_tokens_are_logged_as_one_summary(embedded: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "PERIOD_SECONDS", 1.0)
    started = time.monotonic()
    with capture_logs() as lines:
        for source in ("127.0.0.2", "127.0.0.3"):
            async with connection(embedded.url, source) as opened:
                for number in range(40):
                    token = f"Authorization: Bearer {wrong(jti=number)}"
                    assert (await opened.ask("GET /orders HTTP/1.1", "Host: localhost", token)).status in (401, 429)

        def attempts() -> int:
            return sum(line["attempts"] for line in lines if line["event"] == "tokens_rejected")

        await until(lambda: attempts() == 80)
    summaries = [line for line in lines if line["event"] == "tokens_rejected"]
    assert len(summaries) <= time.monotonic() - started, "one line per period, not one per request"
    assert all(line["log_level"] == "warning" for line in summaries)
    assert not [line for line in lines if "eyJ" in str(line)], "no token appears in a log"


DO_ORDER = json.dumps(do_body("k")).encode()


def do_order_lines(version: str) -> list[str]:
    length = f"Content-Length: {len(DO_ORDER)}"
    return [f"POST /do/order HTTP/{version}", "Content-Type: application/json", "Idempotency-Key: k", length]


async def ask_without_token(url: str, version: str, *headers: str) -> RawResponse:
    return await ask(url, *do_order_lines(version), *headers, body=DO_ORDER)


async def place_without_token(url: str, *headers: str) -> int:
    return (await ask_without_token(url, "1.1", own_host(url), *headers)).status


def own_host(url: str) -> str:
    """The Host of a program of this machine, which names the gateway's port."""
    return f"Host: localhost:{url.rpartition(':')[2]}"


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, 201),
        ({"DO_REQUIRE_TOKEN": "false"}, 201),
        ({"DO_REQUIRE_TOKEN": "true"}, 401),
        ({"SWITCHYARD_HOST": "0.0.0.0"}, 401),
        ({"SWITCHYARD_HOST": "0.0.0.0", "DO_REQUIRE_TOKEN": "true"}, 401),
        ({"SWITCHYARD_HOST": "0.0.0.0", "DO_REQUIRE_TOKEN": "false"}, 201),
    ],
)
async def test_orders_without_a_token_are_for_a_gateway_on_loopback(
    tmp_path: Path, settings: dict[str, str], status: int
) -> None:
    with capture_logs() as lines:
        async with running_gateway(tmp_path, **settings) as gateway:
            assert await place_without_token(gateway.url) == status
    warnings = [line for line in lines if line["event"] == "gateway_reachable_from_other_machines"]
    assert len(warnings) == ("SWITCHYARD_HOST" in settings)
    for warning in warnings:
        assert (warning["do_order_without_token"] == "rejected") == (status == 401)


PROXY_HEADERS = [
    "X-Forwarded-For: 203.0.113.7",
    "X-Forwarded-For: 127.0.0.1",
    "X-Forwarded-For:",
    "X_Forwarded_For: 203.0.113.7",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Host: orders.example.com",
    "X-Forwarded-Port: 443",
    "X-Forwarded: for=203.0.113.7",
    "Forwarded: for=203.0.113.7",
    "Forwarded-For: 203.0.113.7",
    "Via: 1.1 proxy",
    "X-Real-IP: 203.0.113.7",
    "X-Client-IP: 203.0.113.7",
    "X-Cluster-Client-IP: 203.0.113.7",
    "CF-Connecting-IP: 203.0.113.7",
    "CF-Ray: 1",
    "CDN-Loop: cdn",
    "True-Client-IP: 203.0.113.7",
    "Fastly-Client-IP: 203.0.113.7",
    "X-Original-Forwarded-For: 203.0.113.7",
    "X-Original-URL: /do/order",
    "X-Original-Host: orders.example.com",
    "X-Envoy-External-Address: 203.0.113.7",
    "X-Amzn-Trace-Id: Root=1",
    "X-Azure-ClientIP: 203.0.113.7",
    "X-ProxyUser-Ip: 203.0.113.7",
    "WL-Proxy-Client-IP: 203.0.113.7",
    "X-Scheme: https",
    "Fly-Client-IP: 203.0.113.7",
    "DO-Connecting-IP: 203.0.113.7",
    "CloudFront-Viewer-Address: 203.0.113.7:1",
    "X-Vercel-Forwarded-For: 203.0.113.7",
    "Incap-Client-IP: 203.0.113.7",
    "X-Sucuri-ClientIP: 203.0.113.7",
    "X-Nf-Client-Connection-Ip: 203.0.113.7",
    "X-Originating-IP: 203.0.113.7",
    "Remote-Addr: 203.0.113.7",
    "X-NginX-Proxy: true",
    "X-Request-Id: 1",
    "Tailscale-User-Login: somebody",
    "HTTP_X_FORWARDED_FOR: 203.0.113.7",
    "Idempotency_Key: k",
    "A-Proxy-Of-Tomorrow: 1",
]
# What each client sends besides Host, Content-Type, Content-Length and the key.
CLIENT_HEADERS = {
    "curl": ["User-Agent: curl/8.5.0", "Accept: */*"],
    "curl, long body": ["User-Agent: curl/8.5.0", "Accept: */*", "Expect: 100-continue"],
    "requests, httpx": ["User-Agent: x", "Accept-Encoding: gzip, deflate", "Accept: */*", "Connection: keep-alive"],
    "urllib": ["Accept-Encoding: identity", "User-Agent: Python-urllib/3.11", "Connection: close"],
    "fetch of Node": [
        "Connection: keep-alive",
        "Accept: */*",
        "Accept-Language: *",
        "Sec-Fetch-Mode: cors",
        "User-Agent: node",
        "Accept-Encoding: gzip, deflate",
    ],
    "HttpClient of Java": [
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        "Upgrade: h2c",
        "User-Agent: Java-http-client/21",
    ],
    "HttpURLConnection": ["Cache-Control: no-cache", "Pragma: no-cache", "User-Agent: Java/21", "Accept: */*"],
    "Go": ["User-Agent: Go-http-client/1.1", "Accept-Encoding: gzip"],
    "Perl": ["TE: deflate,gzip;q=0.3", "Connection: TE, close", "User-Agent: libwww-perl/6.72"],
    "traced": ["traceparent: x", "tracestate: a=b", "baggage: a=b"],
}


async def test_an_order_that_a_proxy_forwards_needs_a_token(embedded: RunningGateway) -> None:
    for header in PROXY_HEADERS:
        answer = await ask_without_token(embedded.url, "1.1", own_host(embedded.url), header)
        assert answer.status == 401, header
        assert f"header {header.partition(':')[0].lower()}" in json.loads(answer.body)["message"]
    answer = await ask_without_token(embedded.url, "1.0", own_host(embedded.url))
    assert answer.status == 401
    assert "HTTP/1.0" in json.loads(answer.body)["message"]
    assert (await embedded.get("/orders", account="do")).json["orders"] == []
    # With a token the headers change nothing, and a program of this machine needs none.
    placed = await embedded.request(
        "POST", "/do/order", headers={"Via": "1.1 proxy", "Idempotency-Key": "k"}, body=do_body("k")
    )
    assert placed.status == 201
    token = f"Authorization: Bearer {embedded.token()}"
    assert (await ask_without_token(embedded.url, "1.0", "Host: localhost", token)).status == 200
    assert await place_without_token(embedded.url, "User-Agent: curl", "traceparent: x") == 201


TARGETS = [
    ("/do/order", "orders.example.com", 401),
    ("/do/order", "orders.example.com:{port}", 401),
    ("/do/order", "localhost:1", 401),
    ("/do/order", "[::1]:1", 401),
    ("http://orders.example.com/do/order", "localhost", 401),
    ("https://localhost/do/order", "localhost", 401),
    ("HTTPS://localhost:{port}/do/order", "localhost:{port}", 401),
    # A proxy that removes the port of the Host, as nginx does by `$host`.
    ("/do/order", "localhost", 401),
    ("/do/order", "localhost:", 401),
    ("/do/order", "127.0.0.1", 401),
    # A proxy that only looks at the Host, and forwards the bytes as they are.
    ("HTTP://localhost:{port}/do/order", "orders.example.com", 401),
    ("http://localhost:{port}/do/order", "localhost:{port}", 401),
    ("/do/order", "localhost:{port}", 201),
    ("/do/order", "LOCALHOST.:{port}", 200),
    ("/do/order", "127.0.0.1:{port}", 200),
    ("/do/order", "[::1]:{port}", 200),
]


@pytest.mark.parametrize("settings", [{}, {"DO_REQUIRE_TOKEN": "false"}])
async def test_an_order_of_this_machine_for_another_host_needs_a_token(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    """A proxy that keeps the Host, and adds no header, forwards it under the name of the site."""
    async with running_gateway(tmp_path, SWITCHYARD_ALLOWED_HOSTS="orders.example.com", **settings) as gateway:
        port = gateway.url.rpartition(":")[2]
        for target, host, status in TARGETS:
            lines = [line.format(port=port) for line in (f"POST {target} HTTP/1.1", f"Host: {host}")]
            answer = await ask(gateway.url, *lines, *do_order_lines("1.1")[1:], body=DO_ORDER)
            assert answer.status == status, lines


@pytest.mark.parametrize("client", CLIENT_HEADERS)
async def test_a_client_of_this_machine_needs_no_token(embedded: RunningGateway, client: str) -> None:
    async with connection(embedded.url) as opened:
        answer = await opened.ask(
            *do_order_lines("1.1"), own_host(embedded.url), *CLIENT_HEADERS[client], body=DO_ORDER
        )
        if answer.status == 100:
            answer = await opened.response()
    assert answer.status == 201


async def test_no_setting_lets_a_proxy_forward_an_order_without_a_token(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, DO_REQUIRE_TOKEN="false") as gateway:
        assert await place_without_token(gateway.url, "X-Real-IP: 203.0.113.7") == 401
        assert await place_without_token(gateway.url) == 201


@pytest.mark.parametrize(
    "forwarded", ["203.0.113.7", "127.0.0.1", "", "nonsense", "unknown", "127.0.0.1, nonsense", None]
)
async def test_a_client_behind_a_trusted_proxy_needs_a_token(tmp_path: Path, forwarded: str | None) -> None:
    headers = () if forwarded is None else (f"X-Forwarded-For: {forwarded}",)
    async with running_gateway(tmp_path, SWITCHYARD_TRUSTED_PROXIES="127.0.0.1") as gateway:
        assert await place_without_token(gateway.url, *headers) == 401


@pytest.mark.parametrize(
    ("settings", "needs_token"),
    [
        ({"VENUE_URL_SIM": "http://127.0.0.1:1"}, True),
        ({"VENUE_URL_SIM": "https://user:password@broker.example"}, True),
        ({"SOR_VENUES": "sim,other", "VENUE_URL_OTHER": "http://127.0.0.1:1"}, True),
        ({"VENUE_URL_SIM": "null:"}, True),
        # Other processes send, and where to is not known here.
        ({"SWITCHYARD_WORKER": "false"}, True),
        ({"SWITCHYARD_DATABASE_URL": "postgresql://localhost/orders"}, True),
        ({"SWITCHYARD_DATABASE_URL": "postgresql://localhost/orders", "DO_REQUIRE_TOKEN": "false"}, False),
        ({"SOR_VENUES": "sim,other"}, None),
        ({"VENUE_URL_SIM": "http://127.0.0.1:1", "DO_REQUIRE_TOKEN": "false"}, False),
    ],
)
def test_orders_for_a_venue_outside_the_process_need_a_token_unless_a_setting_says_otherwise(
    settings: dict[str, str], needs_token: bool | None
) -> None:
    read = load_settings(settings)
    assert do_order_needs_token(read, sends=read.worker) is needs_token


async def test_a_local_program_needs_a_token_to_reach_a_broker(tmp_path: Path) -> None:
    """A proxy on this machine that adds no header looks like such a program."""
    async with running_gateway(tmp_path, VENUE_URL_SIM="http://127.0.0.1:1", VENUE_QUOTES_SIM="none") as gateway:
        assert await place_without_token(gateway.url) == 401
        assert (await gateway.get("/orders", account="do")).json["orders"] == []


async def test_an_order_needs_a_token_if_a_worker_elsewhere_can_send_it(tmp_path: Path, database_url: str) -> None:
    """A worker may have a broker under the name of this process's paper exchange."""
    async with running_gateway(tmp_path, SWITCHYARD_DATABASE_URL=database_url) as gateway:
        assert await place_without_token(gateway.url) == 401
        assert (await gateway.get("/orders", account="do")).json["orders"] == []


async def test_a_gateway_that_leaves_sending_to_workers_needs_a_token(cluster: Cluster, database_url: str) -> None:
    process = cluster.process("gateway", SWITCHYARD_DATABASE_URL=database_url)
    await process.start()
    assert await place_without_token(process.url) == 401


async def test_the_start_warns_of_a_gateway_that_other_machines_can_reach(cluster: Cluster) -> None:
    process = cluster.process("up", SWITCHYARD_HOST="0.0.0.0")
    await process.start()
    assert "gateway_reachable_from_other_machines" in process.log
    assert "SWITCHYARD_ALLOWED_HOSTS" in process.log
    name = socket.gethostname()
    assert (await ask(process.url, "GET /orders HTTP/1.1", f"Host: {name}")).status == 421
    assert await place_without_token(process.url) == 401
