"""Processes that are forked from one that has imported the package: importing is nine tenths of what a start costs.

A test process has one fork server. It imports the package, takes requests from a socket, forks once for each, and
returns exit code and processor time. A forked process has the arguments, environment, folder and streams of its
request, no thread and no open file of the server, and ends as an interpreter does: nothing but the imports is shared.
Commands with variables that the interpreter itself reads, such as `PYTHONHASHSEED`, are not forked.
"""

import atexit
import contextlib
import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Protocol

import msgspec

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("switchyard")
# A variable that the interpreter, the loader or a library reads before `main`.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "SSL_", "OPENSSL_", "TZ", "LC_", "LANG", "OTEL_")
# Below the size of a socket's buffer.
_REQUEST_BYTES_MAX = 100_000
# The folders of its PYTHONPATH, after that of the program.
_SEARCHED = len(os.environ.get("PYTHONPATH", "").split(os.pathsep))
# How soon a thread sees that another one has read the exit code.
_POLL_SECONDS = 0.1
_MODULES = (
    "confluent_kafka",
    "switchyard.adapters.venues.simulator.app",
    "switchyard.bootstrap",
    "switchyard.entrypoints.cli.main",
    "switchyard.entrypoints.http.app",
    "tests.support.wrapped",
    "uvloop",
)


def clean_environment(**settings: str) -> dict[str, str]:
    """The environment without the developer's own settings; modules of `tests` can be run in it.

    Without a back office: most tests have no use for one, and its port would have to be free.
    """
    # Without compiled modules every process would compile the package again, for half a second.
    dropped = ("SWITCHYARD_", "JWT_", "SSE_", "OTEL_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    fixed = {
        "PYTHONUNBUFFERED": "1",
        # The code beside the tests, wherever the package is installed from.
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        # No certificate authorities: aiohttp reads those of the system at each start, and no process here needs one.
        "SSL_CERT_FILE": os.devnull,
        "SWITCHYARD_BACKOFFICE": "false",
    }
    return {**kept, **fixed, **settings}


class Request(msgspec.Struct, frozen=True):
    """What to run: `switchyard` with these arguments, or a module."""

    module: str | None
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str


class Started(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    pid: int

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    out: IO[bytes],
    error: IO[bytes] | int = subprocess.STDOUT,
) -> Started:
    """Start a command, by a fork if that makes no difference to it."""
    server = _server()
    request = _request(command, environment, folder)
    if request is None or not _starts_alike(environment, server.environment):
        return subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=error)
    return server.start(request, out, out if isinstance(error, int) else error)


def _request(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> bytes | None:
    match command:
        case [program, *arguments] if program == str(COMMAND):
            module = None
        case [sys.executable, "-m", module, *arguments]:
            pass
        case _:
            return None
    request = msgspec.msgpack.encode(Request(module, tuple(arguments), dict(environment), str(folder)))
    return request if len(request) <= _REQUEST_BYTES_MAX else None


def _starts_alike(environment: Mapping[str, str], of_server: Mapping[str, str]) -> bool:
    mine, its = ({name: of[name] for name in of if name.startswith(_READ_AT_START)} for of in (environment, of_server))
    # A forked process can search more folders than its server.
    searched, searched_by_server = (set(of.pop("PYTHONPATH", "").split(os.pathsep)) for of in (mine, its))
    return mine == its and searched >= searched_by_server


class Forked:
    """A process of the fork server; several threads may wait for it."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        # Not the socket: where a garbage collection ends both, its warning may come first.
        self._status = status.detach()
        self._reading = Lock()

    def __del__(self) -> None:
        os.close(self._status)

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _ended_within(self, seconds: float | None) -> int | None:
        if self.returncode is None and self._is_readable(seconds):
            with self._reading:
                if self.returncode is None:
                    code, processor_seconds = msgspec.msgpack.decode(os.read(self._status, 100), type=tuple[int, float])
                    _ForkServer.processor_seconds += processor_seconds
                    self.returncode = code
        return self.returncode

    def _is_readable(self, seconds: float | None) -> bool:
        """Whether the exit code is there, or comes in time; another thread may read it first."""
        readable = select.poll()  # a test may have more open files than `select` takes
        readable.register(self._status, select.POLLIN)
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.returncode is None:
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if readable.poll(1000 * max(0.0, min(left, _POLL_SECONDS))):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return True


class _ForkServer:
    """The test process's side."""

    processor_seconds = 0.0

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, request: bytes, out: IO[bytes], error: IO[bytes]) -> Forked:
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            streams = [out.fileno(), error.fileno(), theirs.fileno()]
            socket.send_fds(self._socket, [request], streams)
        return Forked(int(status.recv(20)), status)

    def close(self) -> None:
        """End the server, and with it the processes that still run."""
        self._socket.close()
        self._process.wait()


_servers: list[_ForkServer] = []


def _server() -> _ForkServer:
    if not _servers:
        _servers.append(_ForkServer(clean_environment()))
        atexit.register(close)
    return _servers[0]


def close() -> None:
    """End the fork server of this process, if it has one."""
    while _servers:
        _servers.pop().close()


def processor_seconds() -> float:
    """What the forked processes used that have ended and were asked for their exit code."""
    return _ForkServer.processor_seconds


def serve(requests: socket.socket) -> Request | None:
    """Fork for each request: return it in the forked process, and None in the server at its end."""
    running: dict[int, socket.socket] = {}
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ended, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    while True:
        readable, _, _ = select.select([requests, ended], [], [])
        if ended in readable:
            ended.recv(1000)
            _report_ended(running)
        if requests in readable:
            encoded, streams, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
            if not encoded:
                break
            request = msgspec.msgpack.decode(encoded, type=Request)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, on_interrupt)
                _become(request, streams[0], streams[1])
                for one in (requests, ended, wakeup, *running.values()):
                    one.detach()  # closed with the other files
                return request
            os.close(streams[0])
            os.close(streams[1])
            running[pid] = socket.socket(fileno=streams[2])
            running[pid].send(b"%d" % pid)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    while running:
        _report_ended(running)
        time.sleep(0.01)
    return None


def _report_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as waiting:
            code = os.waitstatus_to_exitcode(status)
            # Nobody may wait for it any more.
            waiting.send(msgspec.msgpack.encode((code, used.ru_utime + used.ru_stime)), socket.MSG_NOSIGNAL)


def _become(request: Request, out: int, error: int) -> None:
    os.dup2(out, 1)
    os.dup2(error, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)


def _run(request: Request) -> None:
    # As the interpreter does for a module and for a script.
    sys.path[0] = request.folder if request.module else str(COMMAND.parent)
    sys.path[1 : 1 + _SEARCHED] = request.environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = [request.module or str(COMMAND), *request.arguments]
    if request.module:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    else:
        # Not at the top: a test process has no use for the command line.
        from switchyard.entrypoints.cli.main import run

        run()


if __name__ == "__main__":
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in _MODULES:
        __import__(name)
    # What typer imports for its first command.
    with contextlib.suppress(SystemExit):
        _run(Request(None, ("settings",), dict(os.environ), ""))
    # A forked process would collect all of this at its end, and copy it on the way.
    gc.collect()
    gc.freeze()
    received = serve(requests)
    if received is not None:
        _run(received)
