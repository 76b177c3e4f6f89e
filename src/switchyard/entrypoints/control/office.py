"""The back office of `up`: a child process, and the connection that it has to its parent as its standard input.

`OfficeProcess` starts the process, ends it if it is silent, and starts it again after it has ended. The connection
wakes the child after commits and answers its requests. A child whose parent was killed exits at once, because the next
`up` needs its files and its port.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import TypeVar

import msgspec
import structlog

from switchyard.bootstrap import BackOffice, Engine, restricting
from switchyard.domain.errors import CannotStart, OutcomeUnknown, SwitchyardError, Unavailable
from switchyard.domain.ids import AccountId, KillId, VenueName
from switchyard.domain.journal.events import encode
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.health import Check, CheckName
from switchyard.domain.risk.kills import Kill
from switchyard.entrypoints.control.messages import (
    Beat,
    Declined,
    FromOffice,
    LookUpQuotes,
    OfficeReply,
    OfficeRequest,
    QuotesTold,
    Restricted,
    RestrictStrategy,
    ToOffice,
)
from switchyard.flow.clock import Wake

log = structlog.get_logger()
Reply = TypeVar("Reply", QuotesTold, Restricted)

COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "switchyard", "backoffice", "--child")
# Several times a look at the quotes of 1,000 positions at several venues.
LINE_BYTES_MAX = 4 * 1024 * 1024
BEAT_SECONDS = 1.0
# Longer than imports and the recovery of a large file take on a busy machine.
START_BEATS_MAX = 120
# Missed beats. A process that is starved of processor time misses some; a restart costs it a second of work.
SILENT_BEATS_MAX = 30
# While the WAL of the journal cannot be restarted: a stopped process may hold it, and it grows with every order.
HOLDING_BEATS_MAX = 3
# A read takes milliseconds. One that lasts longer is not reported as work, so that the parent ends the process.
READ_SECONDS_MAX = 10.0
# The child reads a page of events per wake-up and lingers as long.
WAKE_SECONDS = 0.05
RESTART_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# A process that has lived for so long did not fail at its start: the next pause is the first one again.
STABLE_SECONDS = 60.0
# Requests and the last commits under way; then it is killed, as after a crash.
END_SECONDS_MAX = 8.0
# `up` says where the books are served once they are, and does not wait longer for that.
LISTEN_SECONDS_MAX = 30.0
# The parent answers from memory, or after one commit.
ANSWER_SECONDS_MAX = 30.0
_PR_SET_PDEATHSIG = 1


class OfficeLink:
    """The parent's end of the connection."""

    def __init__(
        self, engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listens: asyncio.Event
    ) -> None:
        """`listens`: set once the child says where."""
        self._engine = engine
        self._reader = reader
        self._writer = writer
        self._restrict = restricting(engine.kill_switch)
        self._answering: set[asyncio.Task[None]] = set()
        self.beat = Beat()
        """The last one."""
        self.missed = 0
        """Beats that did not come since."""
        self.has_beaten = False
        self._listens = listens
        self._next_beat = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, engine: Engine, end: socket.socket, listens: asyncio.Event) -> "OfficeLink":
        """Open this end of a pair of sockets."""
        end.setblocking(False)
        return cls(engine, *await asyncio.open_unix_connection(sock=end, limit=LINE_BYTES_MAX), listens)

    async def fresh_beat(self) -> Beat:
        """Return a beat from now; the last one if none comes soon."""
        self.send(ToOffice(beat=True))
        await asyncio.wait({self._next_beat}, timeout=BEAT_SECONDS)
        return self.beat

    async def run(self) -> None:
        """Answer the child until it closes its end."""
        with contextlib.suppress(OSError):
            while line := await self._reader.readline():
                received = msgspec.json.decode(line, type=FromOffice)
                if isinstance(received.request, Beat):
                    self._note(received.request)
                else:
                    task = asyncio.create_task(self._answer(received.number, received.request))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)

    async def forward(self, wake: Wake, message: ToOffice | None) -> None:
        """Pass notifications on, several within a moment as one."""
        while True:
            await wake.wait(60.0)
            self.send(message)
            await asyncio.sleep(WAKE_SECONDS)

    def send(self, message: ToOffice | None) -> None:
        """Send a line, `None` as an empty one; never waits, and drops it while the child reads nothing."""
        if not self._writer.transport.get_write_buffer_size():
            self._writer.write(b"\n" if message is None else encode(message) + b"\n")

    async def close(self) -> None:
        """Close this end."""
        for task in list(self._answering):
            task.cancel()
        self._writer.close()

    def _note(self, beat: Beat) -> None:
        self.beat, self.missed, self.has_beaten = beat, 0, True
        self._next_beat.set_result(None)
        self._next_beat = asyncio.get_running_loop().create_future()
        if beat.url is not None:
            self._listens.set()

    async def _answer(self, number: int, request: LookUpQuotes | RestrictStrategy) -> None:
        reply: OfficeReply
        try:
            if isinstance(request, LookUpQuotes):
                reply = QuotesTold(tuple(await self._quotes(request)))
            else:
                reply = Restricted(
                    await self._restrict(request.account_id, request.strategy, request.reason, request.kill_id)
                )
        except SwitchyardError as error:
            reply = Declined.of(error)
        except Exception:
            log.exception("control_command_failed", command=type(request).__name__)
            reply = Declined.of(OutcomeUnknown("the server failed: see control_command_failed in its log"))
        self._writer.write(encode(ToOffice(number=number, reply=reply)) + b"\n")

    async def _quotes(self, request: LookUpQuotes) -> Sequence[Quote | None]:
        quotes = self._engine.quotes
        if request.waits:
            return await asyncio.gather(*(quotes.ask(*one) for one in request.wanted))
        return [quotes.quote(*one) for one in request.wanted]


class OfficeProcess:
    """bootstrap.engine.Office: the child process; one after the other, if one ends."""

    def __init__(self, engine: Engine, environment: Mapping[str, str]) -> None:
        """`environment`: the settings of this process."""
        self._engine = engine
        self._environment = dict(environment)
        self._link: OfficeLink | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reason = "it is starting"
        self._listens = asyncio.Event()

    @property
    def problem(self) -> str | None:
        """Why it does not run, if it does not."""
        return None if self._listens.is_set() else self._reason

    @property
    def url(self) -> str | None:
        """Where it listens; None until it does."""
        return None if self._link is None else self._link.beat.url

    def run_recheck(self, request_id: str) -> None:
        """Carry out a stored recheck; the command repeats it until it has ended."""
        if self._link is None:
            raise Unavailable(f"the back office does not run: {self._reason}")
        self._link.send(ToOffice(recheck=request_id))

    async def until_listening(self) -> None:
        """Return when it listens, or after a time that only a process with a problem needs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_SECONDS_MAX):
                await self._listens.wait()

    async def check(self, name: CheckName) -> Check:
        """What the child says about one of its checks."""
        link = self._link
        if link is None or self.problem is not None:
            return Check(name, "degraded", f"the back office does not run: {self.problem}")
        beat = await link.fresh_beat()
        if link.missed >= HOLDING_BEATS_MAX:
            return Check(name, "degraded", f"the back office has been silent for {link.missed} s")
        known = (each for each in beat.checks if each.check == name)
        return next(known, Check(name, "degraded", "the back office has not compared anything yet"))

    async def run(self) -> None:
        """Keep one child running until cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            code = await self._run_child()
            if self._engine.stop.is_set():
                return
            failures = 1 if loop.time() - began >= STABLE_SECONDS else failures + 1
            pause = RESTART_SECONDS[min(failures, len(RESTART_SECONDS)) - 1]
            self._reason = f"it ended with code {code}; the log says why"
            log.error("backoffice_ended", code=code, retry_seconds=pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._engine.stop.wait()
                return  # a supervisor can end all processes at once

    async def _run_child(self) -> int:
        """Start a child and follow it to its end; returns its exit code. A cancel ends it in order."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._link = link = await OfficeLink.open(self._engine, ours, self._listens)
            try:
                self._process = process = _started(theirs, self._environment)
            except OSError:
                await link.close()
                raise
        log.info("backoffice_started", pid=process.pid)
        tasks = [
            asyncio.create_task(each)
            for each in (
                link.forward(self._engine.commits, None),
                link.forward(self._engine.pdca.rechecks, ToOffice(recheck="")),
                self._watch(link, process),
                self._end_at_stop(process),
            )
        ]
        try:
            await link.run()
        finally:
            self._link = None
            self._listens.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            code = await _ended(process)
            self._process = None
            await link.close()
        return code

    async def _watch(self, link: OfficeLink, process: "subprocess.Popen[bytes]") -> None:
        """End a child that is silent."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            link.missed += 1
            if link.missed >= (SILENT_BEATS_MAX if link.has_beaten else START_BEATS_MAX):
                self._kill(process, f"it has been silent for {link.missed} s")

    async def _end_at_stop(self, process: "subprocess.Popen[bytes]") -> None:
        """End the child while the requests of the parent are finished."""
        await self._engine.stop.wait()
        await _ended(process)

    def end_if_silent(self) -> None:
        """End a silent child while a reader holds the journal's WAL."""
        link, process = self._link, self._process
        if link is not None and process is not None and link.has_beaten and link.missed >= HOLDING_BEATS_MAX:
            self._kill(process, f"it has been silent for {link.missed} s, and the journal's WAL cannot be restarted")

    def _kill(self, process: "subprocess.Popen[bytes]", why: str) -> None:
        if process.poll() is None:
            log.error("backoffice_killed", pid=process.pid, why=why)
            process.kill()


def _started(connection: socket.socket, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start the child in this thread, whose end the child would take for that of its parent.

    Not through the event loop: uvloop forks, which is slow in a large process and not safe in one of many threads.
    `subprocess` takes `vfork`.
    """
    # A session of its own: a Ctrl-C goes to `up` alone, which ends it in order.
    return subprocess.Popen(COMMAND, stdin=connection.fileno(), env=environment, close_fds=True, start_new_session=True)


async def _ended(process: "subprocess.Popen[bytes]") -> int:
    """End the process in order, if it still runs, and by force if that takes too long; returns its exit code."""
    process.terminate()
    waiting = asyncio.create_task(asyncio.to_thread(process.wait))
    await asyncio.wait({waiting}, timeout=END_SECONDS_MAX)
    if not waiting.done():
        log.error("backoffice_killed", pid=process.pid, why="it did not end in time")
        process.kill()
    return await waiting


@asynccontextmanager
async def running_office(engine: Engine, environment: Mapping[str, str]) -> AsyncIterator[OfficeProcess | None]:
    """Run the back office as a child process of `up`, where the settings want one."""
    if not engine.settings.backoffice:
        yield None
        return
    office = OfficeProcess(engine, environment)
    names: tuple[CheckName, ...] = ("books", "reconcile") if engine.settings.reconcile else ("books",)
    for name in names:  # orders do not wait for them
        engine.readiness.add(name, partial(office.check, name), worst="degraded")
    engine.office = office
    engine.on_held_wal(office.end_if_silent)
    async with AsyncExitStack() as stack:
        engine.start_stage(stack, "backoffice", office.run)
        yield office


class ParentLink:
    """bootstrap.backoffice.Parent: the child's end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[OfficeReply]] = {}
        self._run_recheck: Callable[[str], None] | None = None
        self._reported: tuple[BackOffice, str] | None = None
        self.events = Wake()
        self.rechecks = Wake()
        self._beat_wanted = Wake()

    @classmethod
    async def open(cls, end: socket.socket) -> "ParentLink":
        """Open this end of a pair of sockets."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=LINE_BYTES_MAX))

    async def run(self) -> None:
        """Read until the parent ends."""
        with contextlib.suppress(OSError):
            while line := await self._reader.readline():
                if line == b"\n":
                    self.events.notify()
                    continue
                self._take(msgspec.json.decode(line, type=ToOffice))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(OutcomeUnknown("the parent process has ended"))

    def _take(self, received: ToOffice) -> None:
        if received.beat:
            self._beat_wanted.notify()
        elif received.recheck:
            try:
                if self._run_recheck is not None:
                    self._run_recheck(received.recheck)
            except Unavailable as error:  # its command repeats it
                log.warning("recheck_not_begun", request_id=received.recheck, error=str(error))
        elif received.recheck is not None:
            self.rechecks.notify()
        elif received.reply is not None and (waiting := self._waiting.pop(received.number, None)) is not None:
            waiting.set_result(received.reply)

    async def close(self) -> None:
        """Close this end."""
        self._writer.close()

    def report(self, office: BackOffice, url: str) -> None:
        """Report this office from now on, which listens at the address."""
        self._reported = office, url

    async def beat(self) -> None:
        """Tell the parent again and again that this process works."""
        while True:
            beat = Beat() if self._reported is None else await _beat_of(*self._reported)
            if beat is not None and not self._writer.transport.get_write_buffer_size():
                self._writer.write(encode(FromOffice(0, beat)) + b"\n")
            await self._beat_wanted.wait(BEAT_SECONDS)

    def on_recheck(self, callback: Callable[[str], None]) -> None:
        """Call back with a recheck that a command wants carried out."""
        self._run_recheck = callback

    async def restrict(self, account: AccountId, strategy: str, reason: str, kill_id: KillId) -> Kill:
        """Make the strategy reduce-only."""
        request = RestrictStrategy(account_id=account, strategy=strategy, reason=reason, kill_id=kill_id)
        return (await self._ask(request, Restricted)).kill

    async def look_up(self, wanted: Sequence[tuple[VenueName, str]], *, waits: bool = False) -> Sequence[Quote | None]:
        """Return the parent's quotes."""
        return (await self._ask(LookUpQuotes(wanted=tuple(wanted), waits=waits), QuotesTold)).quotes

    async def _ask(self, request: OfficeRequest, expected: type[Reply]) -> Reply:
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(encode(FromOffice(number, request)) + b"\n")
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                reply = await waiting
        except TimeoutError:
            raise OutcomeUnknown(f"the parent process did not answer within {ANSWER_SECONDS_MAX:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(reply, Declined):
            raise reply.error()
        assert isinstance(reply, expected), "the reply to another request"
        return reply


async def _beat_of(office: BackOffice, url: str) -> Beat | None:
    """What the process tells; nothing while a read of the journal hangs."""
    if office.longest_read_seconds() > READ_SECONDS_MAX:
        return None
    return Beat(checks=(await office.readiness.look(kept_seconds=0)).checks, url=url)


def inherited_connection() -> socket.socket:
    """The child's end of the connection; ties this process to the life of its parent."""
    with contextlib.suppress(AttributeError, OSError):  # Linux; elsewhere the end of the connection is enough
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        return socket.socket(fileno=os.dup(sys.stdin.fileno()))
    except OSError as error:
        raise CannotStart(f"--child is for the process that `switchyard up` starts: {error}") from None
