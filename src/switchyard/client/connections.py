"""HTTP connections of the synchronous client; idle ones are kept and used again. Threads may share them."""

import os
import select
import socket
import ssl
from collections.abc import Generator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from switchyard.client.calls import Call, Response, response_of
from switchyard.client.errors import NotReachable, UnreadableResponse
from switchyard.client.wire import api_error

# Four keepalive intervals of the server's default: after that the connection is considered lost.
SILENCE_SECONDS_MAX = 60.0
# More threads than this wait for a new connection now and then.
IDLE_MAX = 8
CHUNK_BYTES = 65_536


class Connections:
    """Sends requests to one gateway."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        self._base_url = base_url
        parts = urlsplit(base_url)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path
        self._headers = dict(headers)
        # Appending to and popping from a list are atomic.
        self._idle: list[HTTPConnection] = []

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def exchange(self, call: Call[Any], timeout_seconds: float) -> Response:
        """Send the call once; raises ClientError. A redirect is an error: it could send the token to another host."""
        connection = self._take_idle(timeout_seconds) or self._connect(timeout_seconds)
        try:
            answer = self._request(connection, call.method, call.path, call.headers, call.body)
            body = answer.read()
        except (OSError, HTTPException) as error:
            connection.close()
            raise NotReachable.lost(self._base_url, error) from error
        if answer.will_close or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return response_of(answer.status, answer.headers, body)

    def listen(self, path: str, headers: Mapping[str, str], timeout_seconds: float) -> Generator[bytes, None, None]:
        """Open a stream and yield its bytes as they arrive; raises ClientError."""
        connection = self._connect(timeout_seconds)
        try:
            answer = self._request(connection, "GET", path, headers, None)
            if answer.status != 200:
                raise api_error(answer.status, answer.read())
            if answer.headers.get_content_type() != "text/event-stream":
                raise UnreadableResponse.not_a_stream(answer.headers.get_content_type())
            connection.sock.settimeout(SILENCE_SECONDS_MAX)
            while chunk := answer.read1(CHUNK_BYTES):
                yield chunk
        except (OSError, HTTPException) as error:
            raise NotReachable.lost(self._base_url, error) from error
        finally:
            connection.close()

    def _request(
        self, connection: HTTPConnection, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> HTTPResponse:
        connection.request(method, self._prefix + path, body=body, headers={**self._headers, **headers})
        return connection.getresponse()

    def _connect(self, timeout_seconds: float) -> HTTPConnection:
        connection = self._kind(self._host, self._port, timeout=timeout_seconds)
        try:
            connection.connect()
        except ssl.SSLError as error:
            connection.close()
            raise NotReachable.no_tls(self._base_url, error) from error
        except OSError as error:
            # No connection was made, so nothing was sent and nothing is in doubt.
            connection.close()
            cause = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise NotReachable.unsent(self._base_url, cause) from error
        return connection

    def _take_idle(self, timeout_seconds: float) -> HTTPConnection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None  # another thread took it
            if not _has_ended(connection.sock):
                connection.sock.settimeout(timeout_seconds)
                return connection
            connection.close()
        return None


def _has_ended(idle: socket.socket) -> bool:
    """Whether the server closed the connection; it sends nothing else on an idle one."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))
