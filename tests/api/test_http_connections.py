"""One HTTP connection: several requests, pipelines, malformed data, upgrade offers and streams."""

import asyncio
from collections.abc import Iterator

import pytest
import uvloop

from tests.support.bare_http import HELLO, PACE_SECONDS, Client, Server, poll, read_response, serving_in_a_thread


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def running_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving_in_a_thread(request.param) as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Iterator[Server]:
    running_server.application.release.clear()
    yield running_server
    running_server.application.release.set()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /hello HTTP/9.9\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET h\xc3\xa9llo HTTP/1.1\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"CONNECT example.test:443 HTTP/1.1\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_malformed_http_is_rejected_as_json(server: Server, request_bytes: bytes) -> None:
    with Client(server.port) as client:
        response = client.ask(request_bytes)
        assert (response.status, response.reason) == (400, "INVALID_HTTP")
        assert response.headers["content-type"] == "application/json"
        assert client.closed_by_server()
    assert server.still_serves()


def test_malformed_data_behind_a_request_does_not_replace_its_response(server: Server) -> None:
    with Client(server.port) as client:
        client.socket.sendall(b"POST /wait HTTP/1.1\r\nContent-Length: 0\r\n\r\nnonsense\r\n\r\n")
        assert not client.readable_within(PACE_SECONDS)
        server.application.release.set()
        assert read_response(client.stream).body == b"waited"
        assert client.closed_by_server()


def test_two_requests_in_a_row_share_a_connection(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"POST /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\none").body == b"hello one"
        assert client.ask(b"POST /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\ntwo").body == b"hello two"


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    requests = [b"POST /hello HTTP/1.1\r\nContent-Length: 4\r\n\r\n%04d" % number for number in range(500)]
    with Client(server.port) as client:
        client.socket.sendall(b"".join(requests))
        assert [read_response(client.stream).body for _ in requests] == [b"hello %04d" % n for n in range(500)]


def test_a_request_with_an_upgrade_header_keeps_its_body(server: Server) -> None:
    with Client(server.port) as client:
        for _ in range(2):
            head = (
                b"POST /hello HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
            )
            assert client.ask(head + b"Content-Length: 5\r\n\r\norder").body == b"hello order"


def test_an_upgrade_to_a_web_socket_is_served_as_a_plain_request(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"GET /hello HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").status == 200


def test_a_stream_ends_when_its_client_disconnects_with_requests_queued_behind_it(server: Server) -> None:
    with Client(server.port) as client:
        ended_before = server.application.streams_ended
        client.socket.sendall(b"GET /stream HTTP/1.1\r\n\r\n" + HELLO)
        assert read_response(client.stream).status == 200
    poll(lambda: server.application.streams_ended > ended_before)
