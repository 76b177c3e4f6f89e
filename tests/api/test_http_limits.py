"""Limits on the size and the duration of a request, tested from a client's socket."""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
import uvloop

from switchyard.entrypoints.http.transport import protocol
from switchyard.entrypoints.http.transport.protocol import HEAD_BYTES_MAX, BoundedHttpProtocol
from tests.support.bare_http import (
    HELLO,
    PACE_SECONDS,
    PATIENCE_SECONDS,
    SHORT_LIMIT_SECONDS,
    Client,
    Server,
    poll,
    read_response,
    serving_in_a_thread,
)


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def running_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving_in_a_thread(request.param) as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Iterator[Server]:
    running_server.application.release.clear()
    yield running_server
    running_server.application.release.set()


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "request_seconds_max", SHORT_LIMIT_SECONDS)


def padded_head(size: int) -> bytes:
    head = b"GET /hello HTTP/1.1\r\nHost: test\r\nX-Padding: "
    return head + b"x" * (size - len(head) - 4) + b"\r\n\r\n"


def test_a_head_just_within_the_limit_is_served(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(padded_head(HEAD_BYTES_MAX)).status == 200


@pytest.mark.parametrize("size", [HEAD_BYTES_MAX + 64, 200_000])
def test_a_head_over_the_limit_is_rejected_and_the_connection_closed(server: Server, size: int) -> None:
    with Client(server.port) as client:
        response = client.ask(padded_head(size))
        assert (response.status, response.reason) == (431, "HEADER_TOO_LARGE")
        assert client.closed_by_server()
    assert server.still_serves()


def test_many_small_headers_count_together(server: Server) -> None:
    with Client(server.port) as client:
        response = client.ask(b"GET /hello HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n")
        assert response.reason == "HEADER_TOO_LARGE"
    assert server.still_serves()


@pytest.mark.parametrize(
    ("start", "piece"),
    [(b"GET /hello HTTP/1.1\r\nX-Endless: ", b"x"), (b"GET /", b"x"), (b"", b"\r\n")],
    ids=["header", "path", "blank lines"],
)
def test_an_endless_head_is_rejected(server: Server, start: bytes, piece: bytes) -> None:
    with Client(server.port) as client:
        client.socket.sendall(start)
        client.send_until_answered(piece * 65_536)
        assert read_response(client.stream).status == 431
        assert client.closed_by_server()
    assert server.still_serves()


def test_a_client_that_sends_ten_megabytes_of_headers_reads_the_431(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", PATIENCE_SECONDS)
    with Client(server.port) as client:
        assert client.ask(padded_head(10_000_000)).status == 431
    assert server.still_serves()


def test_a_client_that_keeps_sending_after_its_rejection_is_disconnected(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"nonsense\r\n\r\n").status == 400
        assert client.closed_by_server()
        poll(client.cannot_send)


def test_endless_trailers_are_rejected(server: Server) -> None:
    with Client(server.port) as client:
        client.socket.sendall(b"POST /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Endless: ")
        client.send_until_answered(b"x" * 65_536)
        assert read_response(client.stream).reason == "BODY_TOO_LARGE"
        assert client.closed_by_server()
    assert server.still_serves()


def test_trailers_do_not_become_headers(server: Server) -> None:
    with Client(server.port) as client:
        response = client.ask(
            b"POST /headers HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: late\r\n\r\n"
        )
        assert json.loads(response.body) == ["transfer-encoding"]


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /hello HT", b""),
        (b"GET /", b"x"),
        (b"GET /hello HTTP/1.1\r\nX-Slow: ", b"x"),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"POST /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"POST /hello HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
        (b"\r\n", b"\r\n"),
    ],
    ids=["silence", "slow path", "slow header", "slow body", "slow chunks", "nothing after 100", "blank lines"],
)
def test_a_request_that_arrives_too_slowly_is_rejected(server: Server, start: bytes, piece: bytes) -> None:
    with Client(server.port) as client:
        client.socket.sendall(start)
        if b"Expect" in start:
            assert read_response(client.stream).status == 100
        client.send_until_answered(piece, pace_seconds=PACE_SECONDS)
        response = read_response(client.stream)
        assert (response.status, response.reason) == (408, "REQUEST_TIMEOUT")
        assert client.closed_by_server()
    assert server.still_serves()


@pytest.mark.usefixtures("short_limit")
def test_a_slow_second_request_on_a_connection_is_rejected_too(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(HELLO).status == 200
        client.socket.sendall(b"GET /he")
        assert read_response(client.stream).status == 408
        assert client.closed_by_server()


@pytest.mark.usefixtures("short_limit")
def test_an_incomplete_pipelined_request_times_out_too(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(HELLO + b"GET /he").status == 200
        assert read_response(client.stream).status == 408


@pytest.mark.usefixtures("short_limit")
def test_a_connection_that_never_sends_anything_is_closed_without_a_response(server: Server) -> None:
    with Client(server.port) as client:
        assert client.closed_by_server()
    assert server.still_serves()


@pytest.mark.usefixtures("short_limit")
def test_a_body_that_is_slow_after_its_response_is_disconnected_without_a_second_response(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"POST /early HTTP/1.1\r\nContent-Length: 100\r\n\r\n").body == b"early"
        assert client.closed_by_server()
    assert server.still_serves()


def test_a_body_that_ends_after_its_response_leaves_the_connection_usable(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"POST /early HTTP/1.1\r\nContent-Length: 5\r\n\r\n12").body == b"early"
        assert client.ask(b"345" + HELLO).status == 200


@pytest.mark.usefixtures("short_limit")
def test_an_idle_connection_outlives_the_request_limit(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(HELLO).status == 200
        assert not client.readable_within(3 * SHORT_LIMIT_SECONDS)
        assert client.ask(HELLO).status == 200


@pytest.mark.usefixtures("short_limit")
def test_a_long_lived_stream_outlives_the_request_limit(server: Server) -> None:
    with Client(server.port) as client:
        began = time.monotonic()
        client.socket.sendall(b"GET /stream HTTP/1.1\r\n\r\n")
        assert read_response(client.stream).headers["content-type"] == "text/event-stream"
        while time.monotonic() - began < 3 * SHORT_LIMIT_SECONDS:
            assert client.stream.readline()


@pytest.mark.usefixtures("short_limit")
def test_an_incomplete_pipelined_request_does_not_end_the_request_before_it(server: Server) -> None:
    with Client(server.port) as client:
        client.socket.sendall(b"GET /wait HTTP/1.1\r\n\r\nGET /he")
        assert not client.readable_within(3 * SHORT_LIMIT_SECONDS)
        server.application.release.set()
        assert read_response(client.stream).body == b"waited"
        assert read_response(client.stream).status == 408
