"""A partition between a sender and a broker, in a user and network namespace of its own.

Run as `unshare -Urn python -m tests.support.partition SCENARIO`: the loopback interface goes down before an order is
written to an established connection, and up again after the sender has given up. Prints what the broker received.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import uvloop

from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.domain.ids import VenueName
from switchyard.ports.venue import Capabilities
from switchyard.venue.bridge import RESPONSE_SECONDS
from tests.support.polling import until
from tests.support.venue_orders import an_order

SCENARIOS = ("time-out", "cancelled", "kill", "stopped")
_SYN_SENT = "02"
_GET_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 0x1
_ANSWER = b"HTTP/1.1 404 Not Found\r\nContent-Length: 25\r\n\r\n" + b'{"error":"UNKNOWN_ORDER"}'


def set_loopback(*, is_up: bool) -> None:
    """Bring the loopback interface of this namespace up or down, by ioctl, so that iproute2 is not needed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, _GET_FLAGS, struct.pack("16sh22x", b"lo", 0))
        [flags] = struct.unpack("16xh22x", request)
        flags = flags | _IS_UP if is_up else flags & ~_IS_UP
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags))


class Broker:
    """Reads requests, answers lookups, and leaves orders unanswered."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = b""
        self._connections: list[tuple[socket.socket, threading.Thread]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            reader = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._connections.append((connection, reader))
            reader.start()

    def read_all(self) -> None:
        """Read what has arrived on every connection, and no more than that: some stay half-open for good."""
        for connection, reader in self._connections:
            with contextlib.suppress(OSError):  # ended already
                connection.shutdown(socket.SHUT_RD)
            reader.join()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while chunk := connection.recv(65536):
                    self.received += chunk
                    if chunk.startswith(b"GET "):
                        connection.sendall(_ANSWER)
            except OSError:
                pass  # reset, as the sender should

    @property
    def orders(self) -> int:
        """How many orders have arrived."""
        return self.received.count(b"POST /orders ")


def held_bytes(port: int) -> list[int]:
    """What the kernel still holds for each connection to the port, whether or not a process has it open.

    A connection that is being opened, such as a spare one, holds nothing but its SYN.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    connected = [row for row in rows if int(row[2].partition(":")[2], 16) == port and row[3] != _SYN_SENT]
    return [int(row[4].partition(":")[0], 16) for row in connected]


async def send(port: int, response_seconds: float, *, cancel: bool = False) -> str:
    """Wait until a connection is open, then for a line on stdin, and send an order on the connection."""
    limits = dict.fromkeys(RESPONSE_SECONDS, response_seconds)
    venue = http_venue(
        VenueName("broker"),
        url=f"http://127.0.0.1:{port}",
        capabilities=Capabilities(dedupe="none", lookup="all"),
        clock=SystemClock(),
        response_seconds=limits,
    )
    await venue.start()
    await until(lambda: len(venue._sends._waiting) > 0)
    _say("connected")
    await asyncio.to_thread(sys.stdin.readline)
    sending = asyncio.create_task(venue.submit(an_order("one", price="1")))
    if cancel:
        await until(lambda: any(held_bytes(port)))
        sending.cancel()
    try:
        outcome = str(await sending)
    except asyncio.CancelledError:
        outcome = "cancelled"
    _say("gave up")
    await asyncio.to_thread(sys.stdin.readline)
    return outcome


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def run(scenario: str) -> dict[str, object]:
    """Play the scenario; returns what the broker received before and after the partition healed."""
    set_loopback(is_up=True)
    broker = Broker()
    seconds = 4.9 if scenario in ("kill", "stopped") else 1.0
    sender = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop
        [sys.executable, "-m", "tests.support.partition", "send", str(broker.port), str(seconds), scenario],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert sender.stdin is not None
    assert sender.stdout is not None
    assert sender.stdout.readline() == "connected\n"
    set_loopback(is_up=False)
    sender.stdin.write("send\n")
    sender.stdin.flush()
    if scenario in ("kill", "stopped"):
        await until(lambda: any(held_bytes(broker.port)))
    before = broker.orders
    match scenario:
        case "kill":
            sender.kill()
            sender.wait()
        case "stopped":
            sender.send_signal(signal.SIGSTOP)
            # The kernel itself has to give up: TCP_USER_TIMEOUT, noticed at the next retransmission.
            await until(lambda: not any(held_bytes(broker.port)))
        case _:
            assert sender.stdout.readline() == "gave up\n"
    held = sum(held_bytes(broker.port))
    set_loopback(is_up=True)
    # A kernel that still holds the bytes retransmits them now; after that there is no connection that holds any.
    await until(lambda: not any(held_bytes(broker.port)))
    broker.read_all()
    sender.kill()
    sender.wait()
    return {"before": before, "held": held, "after": broker.orders}


if __name__ == "__main__":
    if sys.argv[1] == "send":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(send(int(sys.argv[2]), float(sys.argv[3]), cancel=sys.argv[4] == "cancelled"))
        os._exit(0)
    _say(json.dumps(asyncio.run(run(sys.argv[1]))))
