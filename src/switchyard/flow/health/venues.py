"""The health of every venue as this process sees it: breakers, quality, and the choice of a venue for an order.

Written by the stages of a worker, read by the dispatcher, the router and the API; shared with the gateways through
the database.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from switchyard.domain.errors import OutcomeUnknown, Unavailable
from switchyard.domain.ids import WHOLE, AccountId, IdForm, VenueName, carries, digest_digits, narrowest
from switchyard.domain.journal.changes import Change, Cursor
from switchyard.domain.journal.facts import RouteFact
from switchyard.domain.market.health import BreakerState, HealthRecord, VenueSession
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.routing import Candidate, Route, Router, Wanted, preferred, ranked
from switchyard.domain.orders.order import Order, OrderRequest, TakenOrders, lacking
from switchyard.domain.orders.reasons import bounded_detail
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.health.dead_mans_switch import DeadMansSwitch
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.quotes import Quotes
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent, VenueRejected
from switchyard.telemetry.metrics import Metrics
from switchyard.venue.credentials import Credential, Pause

# The weight of the newest answer: about the last twenty count.
WEIGHT = 0.1
# With fewer answers than this, a share says little.
ANSWERS_MIN = 5


class VenueQuality:
    """Moving averages over the answers to orders; none until there are some."""

    def __init__(self) -> None:
        self._answers = 0
        self._latency: float | None = None
        self._rejected = 0.0

    @property
    def latency_seconds(self) -> float | None:
        """How long the venue takes to answer an order."""
        return self._latency

    @property
    def reject_rate(self) -> float | None:
        """The share of orders that the venue rejects, from 0 to 1."""
        return self._rejected if self._answers >= ANSWERS_MIN else None

    def note(self, outcome: SendOutcome, seconds: float) -> None:
        """The venue has answered an order after this time, or has not."""
        if not isinstance(outcome, Accepted | VenueRejected):
            return
        weight = max(WEIGHT, 1 / (self._answers + 1))
        self._latency = seconds if self._latency is None else self._latency + weight * (seconds - self._latency)
        self._rejected += weight * (isinstance(outcome, VenueRejected) - self._rejected)
        self._answers += 1


log = structlog.get_logger()

STATE_NUMBERS: Final[dict[BreakerState, int]] = {"closed": 0, "half_open": 1, "open": 2}

# Good probes in a row after the pause, one a second: a single answer may come from a venue that is still starting.
PROBES_GOOD = 2
# A venue whose orders keep failing although it answers probes is tried less and less often, up to this pause.
PAUSE_MAX = timedelta(minutes=1)
# Accounts whose orders fail; of the others the faults in a row are not counted one by one.
FAULTY_MAX = 1_000
# Accounts that the workers tell the gateways about.
HELD_MAX = 100
# A read of reports that fails is repeated within a second; after this time without one, fills would not be heard.
UNHEARD_SECONDS = 5.0

_FAULTS: Final = frozenset(
    {"BROKER_DOWN", "VENUE_DOWN", "RATE_LIMITED", "NETWORK_TIMEOUT", "NETWORK_DISCONNECTED", "BROKER_5XX"}
)


def _nothing() -> None:
    pass


class VenueBreaker:
    """Opens after `faults_max` faults in a row; with 0 it never opens.

    While it is open nothing is sent. After the pause it is half open: it closes with `PROBES_GOOD` good probes in a row
    and reports that can be read. Then one order at a time is sent until the venue answers one; a fault before that
    opens it again, for twice as long.

    The orders of one account may fail alone. So a fault counts only if the venue has answered no other account since
    that order was sent; an account with `faults_max` faults in a row is suspect and sends one order at a time until one
    is answered. If orders alone have opened the breaker and the venue answers probes, it is ajar: one order at a time
    of an account without a fault is sent, and an answer to it closes the breaker.
    """

    def __init__(self, venue: VenueName, *, faults_max: int, pause: timedelta, clock: Clock, metrics: Metrics) -> None:
        self.venue = venue
        self._faults_max = faults_max
        self._pause_min = self._pause = pause.total_seconds()
        self._clock = clock
        self._gauge = metrics.routing.breaker_state.labels(venue)
        self._opened = metrics.routing.breaker_opened.labels(venue)
        self._send_faults = 0
        self.faulty: dict[AccountId, int] = {}
        """The faults in a row of each account whose last order has failed; those that began earliest first."""
        self._answered: list[tuple[AccountId, float]] = []
        """The last account that was answered, and the last other one before it, with the times of their answers."""
        self._probe_faults = 0
        self._good_probes = 0
        self._is_of_orders = False
        """Whether failed orders alone have opened it."""
        self._good_since_open = 0
        """The good probes in a row since then."""
        self._open_until: float | None = None
        """None while it is closed; on the monotonic clock."""
        self._unheard_since: float | None = None
        self._since = clock.now()
        self.reason: str | None = None
        """Why it is not closed; for people."""
        self.is_unheard = False
        """Whether it opened because reports cannot be read: the venue may well take a cancel."""
        self.is_trial = False
        """Whether it has just closed, and the venue has not answered an order since."""
        self.on_change: Callable[[], None] = _nothing
        """Called after it opens or closes."""
        self.credential: Credential | None = None
        """While it is paused, unanswered questions are no faults: the venue is hardly asked."""
        self._gauge.set(0)

    @property
    def is_closed(self) -> bool:
        """Whether orders may be sent."""
        return self._open_until is None

    @property
    def state(self) -> BreakerState:
        """Its state; half open once the pause is over and the next probes decide."""
        if self._open_until is None:
            return "closed"
        return "half_open" if self._clock.monotonic() >= self._open_until else "open"

    @property
    def faults(self) -> int:
        """The faults in a row so far."""
        return self._send_faults + self._probe_faults

    @property
    def is_ajar(self) -> bool:
        """Whether it is open, and takes an order of an account without a fault as a trial."""
        return self._is_of_orders and not self.is_closed and self._good_since_open >= PROBES_GOOD

    def is_suspect(self, account: AccountId) -> bool:
        """Whether the orders of this account keep failing: it sends one at a time."""
        return bool(self.faulty) and self.faulty.get(account, 0) >= self._faults_max > 0

    def note_send(self, account: AccountId, outcome: SendOutcome, began_at: float) -> None:
        """A request of this account has ended; what never left this process, and unclear answers, say nothing."""
        match outcome:
            case Accepted() | VenueRejected():
                self._send_faults = 0
                is_trial = self.is_trial or (self.is_ajar and account not in self.faulty)
                self.faulty.pop(account, None)
                self._answered = [
                    (account, self._clock.monotonic()),
                    *[answered for answered in self._answered if answered[0] != account][:1],
                ]
                if not self.is_closed and is_trial:
                    self._close()
                if self.is_closed:
                    self.is_trial, self._pause = False, self._pause_min
            case Unsent(code, detail) | Ambiguous(code, detail) if code in _FAULTS:
                if self._is_of_the_venue(account, began_at):
                    self._send_faults += 1
                    self._note_fault(account)
                    self._judge(code if detail is None else f"{code}: {detail}")
                else:
                    self._note_fault(account)

    def _is_of_the_venue(self, account: AccountId, began_at: float) -> bool:
        """Whether the fault may be one of the venue, and not of this account alone."""
        answered_at = max((at for other, at in self._answered if other != account), default=float("-inf"))
        if self.is_suspect(account) and not self.is_trial:
            return self._clock.monotonic() - answered_at > PAUSE_MAX.total_seconds()
        return began_at > answered_at

    def began_at(self, seconds: float) -> float:
        """When a request that has taken this time began, on the monotonic clock."""
        return self._clock.monotonic() - seconds

    def _note_fault(self, account: AccountId) -> None:
        faults = self.faulty.get(account, 0) + 1
        if faults == 1 and len(self.faulty) >= FAULTY_MAX:
            del self.faulty[next(iter(self.faulty))]
        self.faulty[account] = faults

    def note_probe(self, failure: str | None) -> None:
        """A probe has ended; `failure` says why it was not answered in time."""
        if failure is not None and self.credential is not None and self.credential.is_paused:
            self._good_probes = 0
            return
        if failure is not None:
            self._probe_faults += 1
            self._good_probes = self._good_since_open = 0
            if self.is_closed:
                self._judge(failure)
            elif self.is_unheard:
                self.is_unheard = False  # it does not answer at all
                self._open(failure)
                self.on_change()
            elif self.state == "half_open":
                self._open(failure)
            return
        self._probe_faults = 0
        if self.is_closed:
            self._judge_reports()
        elif self._unheard_since is None:
            self._good_since_open += 1
            if self.state == "half_open":
                self._good_probes += 1
                if self._good_probes >= PROBES_GOOD:
                    self._close()
        self._gauge.set(STATE_NUMBERS[self.state])

    def note_hanging(self, seconds: float) -> None:
        """A probe has had no answer for this time: what is sent now would come into doubt."""
        if self.is_closed and self._faults_max:
            self._open(f"no answer to a probe for {seconds:g} s")

    def note_reports(self, failure: str | None) -> None:
        """A read of reports has ended; `failure` says why it failed."""
        if failure is None or (self.credential is not None and self.credential.is_paused):
            self._unheard_since = None
        elif self._unheard_since is None:
            self._unheard_since, self._good_since_open = self._clock.monotonic(), 0
        if self._unheard_since is not None and failure is not None and self.is_closed:
            self._judge_reports(failure)

    def _judge_reports(self, failure: str = "no read of them succeeds") -> None:
        if self._unheard_since is None or not self._faults_max:
            return
        if self._clock.monotonic() - self._unheard_since >= UNHEARD_SECONDS:
            self.is_unheard = True
            self._open(f"its reports cannot be read: {failure}")

    def _judge(self, why: str) -> None:
        if not self.is_closed or not self._faults_max:
            return
        if self.is_trial:
            self._pause = min(2 * self._pause, PAUSE_MAX.total_seconds())
            self._open(f"the first order after a pause failed: {why}", is_of_orders=not self._probe_faults)
        elif self.faults >= self._faults_max:
            self._open(f"{self.faults} faults in a row, the last: {why}", is_of_orders=not self._probe_faults)

    def _open(self, reason: str, *, is_of_orders: bool = False) -> None:
        was_closed = self.is_closed
        self._is_of_orders = is_of_orders
        self._open_until = self._clock.monotonic() + self._pause
        self._good_probes = self._good_since_open = 0
        self.is_trial = False
        self.reason = bounded_detail(reason)
        self._gauge.set(STATE_NUMBERS["open"])
        if was_closed:
            self._since = self._clock.now()
            self._opened.inc()
            log.error("venue_breaker_opened", venue=self.venue, reason=reason, pause_seconds=self._pause)
            self.on_change()

    def _close(self) -> None:
        self._open_until = self.reason = None
        self.is_unheard = False
        self._send_faults = self._probe_faults = 0
        self.is_trial = True
        self._since = self._clock.now()
        log.warning("venue_breaker_closed", venue=self.venue)
        self.on_change()


async def _keep_nothing(_venue: VenueName) -> None:
    pass


class HealthBoard:
    """The breakers, the credentials and the quality of the venues."""

    def __init__(self) -> None:
        self._breakers: dict[VenueName, VenueBreaker] = {}
        self._quality: dict[VenueName, VenueQuality] = {}
        self._reported: Mapping[VenueName, HealthRecord] = {}
        self._credentials: Mapping[VenueName, Credential] = {}
        self._reported_pauses: Mapping[VenueName, str] = {}
        self.paused: frozenset[VenueName] = frozenset()
        """The venues that reject their credential, of those that this process sends to."""
        self.keep_pause: Callable[[VenueName], Awaitable[None]] = _keep_nothing
        """Stores the pause of a venue; set where pauses are kept."""
        self.switches: dict[VenueName, DeadMansSwitch] = {}
        """The dead man's switches that this process keeps set."""
        self.blocked: frozenset[VenueName] = frozenset()
        """The venues that get no orders: their breaker is not closed, or their credential is paused."""
        self.unheard: frozenset[VenueName] = frozenset()
        """Those of them that take cancels, because they only opened for want of reports."""
        self.sessions: dict[VenueName, VenueSession] = {}
        """The sessions that this process holds."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after a breaker has opened or closed, or a pause has begun or ended."""
        self.held_here: Callable[[VenueName], Collection[AccountId]] = lambda _venue: ()
        """The accounts whose orders this process holds back at a venue, while it sends those of others."""

    def watch_credentials(self, credentials: Mapping[VenueName, Credential]) -> None:
        """Send nothing to the venues that reject their credential."""
        self._credentials = credentials
        for venue, credential in credentials.items():
            credential.on_change = self._note_change
            if venue in self._breakers:
                self._breakers[venue].credential = credential

    def watch(self, breakers: Iterable[VenueBreaker]) -> None:
        """Judge these venues from now on: this process sends to them."""
        for breaker in breakers:
            self._breakers[breaker.venue] = breaker
            self._quality[breaker.venue] = VenueQuality()
            breaker.on_change = self._note_change

    def breaker(self, venue: VenueName) -> VenueBreaker | None:
        """The venue's breaker; none in a process that does not send."""
        return self._breakers.get(venue)

    def record(self, venue: VenueName) -> HealthRecord | None:
        """What is known about the venue; none where no worker has reported on it."""
        breaker = self._breakers.get(venue)
        if breaker is None:
            return self._reported.get(venue)
        quality, switch = self._quality[venue], self.switches.get(venue)
        return HealthRecord(
            breaker=breaker.state,
            reason=breaker.reason,
            faults=breaker.faults,
            latency_seconds=quality.latency_seconds,
            reject_rate=quality.reject_rate,
            switch=None if switch is None else switch.state,
            session=self.sessions.get(venue),
        )

    def pause_of(self, venue: VenueName) -> str | None:
        """Why nothing is sent with the venue's credential; none if it is used, or if that is not known here."""
        credential = self._credentials.get(venue)
        return self._reported_pauses.get(venue) if credential is None else credential.reason

    def may_send_since(self, venue: VenueName) -> datetime | None:
        """When the last pause of the venue's credential ended; none if there was none."""
        credential = self._credentials.get(venue)
        return None if credential is None else credential.resumed_at

    def held(self, venue: VenueName) -> Collection[AccountId]:
        """The accounts whose orders wait at the venue although those of others are sent."""
        if venue in self._breakers:
            return self.held_here(venue)
        reported = self._reported.get(venue)
        return () if reported is None else reported.held

    def reason(self, venue: VenueName) -> str | None:
        """Why no orders are sent to the venue; none if they are, or if that is not known here."""
        if (pause := self.pause_of(venue)) is not None:
            return pause
        breaker = self._breakers.get(venue)
        if breaker is not None:
            return breaker.reason
        reported = self._reported.get(venue)
        return None if reported is None else reported.reason

    def note_reported(self, records: Mapping[VenueName, HealthRecord]) -> None:
        """What the workers have reported, in a process that does not send."""
        self._reported = records

    def note_reported_pauses(self, pauses: Mapping[VenueName, str]) -> None:
        """The paused credentials, in a process that does not send."""
        self._reported_pauses = pauses

    def is_trial(self, venue: VenueName) -> bool:
        """Whether only one order at a time may be sent to the venue."""
        breaker, credential = self._breakers.get(venue), self._credentials.get(venue)
        is_trial = breaker is not None and (breaker.is_trial or breaker.is_ajar)
        return is_trial or (credential is not None and credential.is_trial)

    @property
    def ajar(self) -> frozenset[VenueName]:
        """The venues whose breaker is open and that take an order of an account without a fault."""
        return frozenset(venue for venue in self.blocked - self.paused if self._breakers[venue].is_ajar)

    def note_sends(
        self, venue: VenueName, accounts: Iterable[AccountId], outcomes: Iterable[SendOutcome], seconds: float
    ) -> None:
        """The venue was sent orders of these accounts or a cancel, and these outcomes came after this time."""
        breaker = self._breakers.get(venue)
        if breaker is None:
            return
        quality, began_at = self._quality[venue], breaker.began_at(seconds)
        for account, outcome in zip(accounts, outcomes, strict=True):
            breaker.note_send(account, outcome, began_at)
            quality.note(outcome, seconds)

    def _note_change(self) -> None:
        blocked = {name: breaker for name, breaker in self._breakers.items() if not breaker.is_closed}
        self.paused = frozenset(name for name, credential in self._credentials.items() if credential.is_paused)
        self.blocked = frozenset(blocked) | self.paused
        self.unheard = frozenset(name for name, breaker in blocked.items() if breaker.is_unheard) - self.paused
        self.on_change()


Problem = Callable[[VenueName], str | None]
"""Why an order should not go to a venue; none where it may."""


class VenueChoice:
    """Chooses the venue of a new order, and of one that leaves its venue."""

    def __init__(
        self,
        router: Router,
        quotes: Quotes,
        *,
        catalogue: Catalogue,
        health: HealthBoard,
        fees_percent: Mapping[VenueName, Decimal | None],
        taken: Mapping[VenueName, TakenOrders],
        id_forms: Mapping[VenueName, IdForm] = MappingProxyType({}),
    ) -> None:
        """`fees_percent`: of each venue, none where the instrument's own applies; `taken`: the orders that it takes;
        `id_forms`: of its client order ids.
        """
        self._router = router
        self._quotes = quotes
        self._catalogue = catalogue
        self._health = health
        self._fees_percent = fees_percent
        self._taken = taken
        self._id_forms = id_forms
        self._narrows = digest_digits(narrowest(id_forms.values())) < digest_digits(WHOLE)

    def pause_of(self, venue: VenueName) -> str | None:
        """Why new orders to the venue are rejected: it rejects its credential; none if they are accepted."""
        return self._health.pause_of(venue)

    def may_leave(self, venue: VenueName) -> bool:
        """Whether the route of some symbol names the venue and another one."""
        return self._router.may_leave(venue)

    def route_of(self, symbol: str, account: AccountId) -> Route:
        """The route of the account's orders in the symbol."""
        return self._router.route_for(symbol, account)

    def id_form(self, symbol: str, venue: VenueName, account: AccountId) -> IdForm:
        """The form to which the client order id of a new order is narrowed: every venue of its route can carry it."""
        if not self._narrows:
            return WHOLE
        names = {venue, *self.route_of(symbol, account).venues}
        return narrowest(self._id_forms[name] for name in names if name in self._id_forms)

    def among(self, order: OrderRequest | Order, route: Route, problem: Problem | None = None) -> RouteFact:
        """The venues of the route, the best first."""

        def problem_of(venue: VenueName) -> str | None:
            return self._lacking(venue, order) or (self._health.reason if problem is None else problem)(venue)

        if not route.by_quality:
            return preferred(
                [
                    Candidate(venue=venue, problem=problem_of(venue), is_barred=self.pause_of(venue) is not None)
                    for venue in route.venues
                ]
            )
        instrument = self._catalogue.find(order.symbol)
        candidates = [
            self._candidate(venue, order.symbol, instrument.fee_percent, problem_of(venue)) for venue in route.venues
        ]
        return ranked(Wanted(order.side, order.qty, instrument.tick), candidates)

    def instead_of(self, order: Order, problem: Problem) -> VenueName | None:
        """The venue to which an order may go from its present one; none where no other can take it."""
        route = self.route_of(order.symbol, order.account_id)
        others = tuple(
            venue
            for venue in route.venues
            if venue != order.venue and problem(venue) is None and self._lacking(venue, order) is None
        )
        if not others:
            return None
        return self.among(order, Route(others, by_quality=route.by_quality), problem).candidates[0].venue

    def _lacking(self, venue: VenueName, order: OrderRequest | Order) -> str | None:
        """What the venue lacks for an order of this kind, in words; such an order must not go there."""
        taken = self._taken.get(venue)
        found = None if taken is None else lacking(taken, order)
        if found is not None:
            return f"it has no {found.value}"
        form = self._id_forms.get(venue)
        if isinstance(order, Order) and form is not None and not carries(form, order.venue_client_order_id):
            return "its form of client order ids has no room for the order's"  # made for another route
        return None

    def _candidate(self, venue: VenueName, symbol: str, fee_percent: Decimal, problem: str | None) -> Candidate:
        record, own_fee = self._health.record(venue), self._fees_percent.get(venue)
        return Candidate(
            venue=venue,
            problem=problem,
            is_barred=self.pause_of(venue) is not None,
            quote=self._quotes.quote(venue, symbol),
            fee_percent=fee_percent if own_fee is None else own_fee,
            reject_rate=None if record is None else record.reject_rate,
            latency_seconds=None if record is None else record.latency_seconds,
        )


PAUSE_SECONDS = 1.0
# Written again after this time, so that a gateway can tell a quiet venue from a worker that is gone.
REPEAT_SECONDS = 5.0
# Older than this, a record says nothing: its worker is gone or cannot write.
STALE = timedelta(seconds=20)


class _Dated(msgspec.Struct, frozen=True):
    """A record as it is stored, in the text of a cursor: its number and epoch would count as places in the journal."""

    at: datetime
    record: HealthRecord


_decode = msgspec.json.Decoder(_Dated).decode
_decode_pause = msgspec.json.Decoder(Pause).decode


class HealthWriter:
    """Writes what this worker knows; of several workers the last one counts."""

    def __init__(
        self,
        board: HealthBoard,
        venues: Sequence[VenueName],
        commit: Commit,
        clock: Clock,
        is_used: Callable[[VenueName], bool] = lambda _: True,
    ) -> None:
        """`is_used`: whether this worker uses the venue now, and so knows how it answers."""
        self._is_used = is_used
        self._board = board
        self._venues = venues
        self._commit = commit
        self._clock = clock
        self._written: dict[VenueName, tuple[object, float]] = {}

    async def run(self) -> None:
        """Write for as long as the process lives."""
        while True:
            try:
                await self.run_once()
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("venue_health_not_written", error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Write the records whose breaker has changed, or that are about to become stale; returns how many."""
        now, cursors = self._clock.monotonic(), []
        for venue in self._venues:
            record = self._board.record(venue) if self._is_used(venue) else None
            if record is None:
                continue
            held = tuple(sorted(self._board.held(venue))[:HELD_MAX])
            record = replace(record, held=held) if held else record
            shown = (record.breaker, record.reason, record.held, record.switch, record.session)
            before, written_at = self._written.get(venue, (None, float("-inf")))
            if shown != before or now - written_at >= REPEAT_SECONDS:
                text = msgspec.json.encode(_Dated(self._clock.now(), record)).decode()
                cursors.append(Cursor(name=health_name(venue), epoch=0, seq=0, hash=text))
                self._written[venue] = (shown, now)
        if cursors:
            await self._commit(Change(cursors=tuple(cursors)))
        return len(cursors)


class HealthReader:
    """Gives the board of a gateway what the workers have written."""

    def __init__(self, board: HealthBoard, venues: Sequence[VenueName], journal: Journal, clock: Clock) -> None:
        self._board = board
        self._venues = venues
        self._journal = journal
        self._clock = clock

    async def run(self) -> None:
        """Read for as long as the process lives."""
        while True:
            try:
                await self.run_once()
            except Unavailable as error:
                log.warning("venue_health_not_read", error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_once(self) -> int:
        """Read all records; returns how many are not stale."""
        found: dict[VenueName, HealthRecord] = {}
        paused: dict[VenueName, str] = {}
        for venue in self._venues:
            pause = await stored_pause(self._journal, venue)
            if pause is not None and not pause.is_over:
                paused[venue] = pause.reason  # however long ago: no worker sends before it is over
            mark = await self._journal.cursor(health_name(venue))
            stored = None if mark is None else _decode(mark.hash)
            if stored is not None and self._clock.now() - stored.at <= STALE:
                found[venue] = stored.record
        self._board.note_reported(found)
        self._board.note_reported_pauses(paused)
        return len(found)


class PauseKeeper:
    """Keeps the pauses of this worker's credentials, and adopts those of other workers and of the time before."""

    def __init__(
        self, board: HealthBoard, credentials: Mapping[VenueName, Credential], journal: Journal, commit: Commit
    ) -> None:
        self._board = board
        self._credentials = credentials
        self._journal = journal
        self._commit = commit
        self._known: dict[VenueName, Pause | None] = {}
        """What this process has last read or written."""
        self._turns = {venue: asyncio.Lock() for venue in credentials}

    async def start(self) -> None:
        """Adopt the pauses; must come before the first send."""
        await self.run_once()
        self._board.keep_pause = self.keep

    async def run(self) -> None:
        """Read and write for as long as the process lives."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await self.run_once()
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("venue_pauses_not_kept", error=str(error))

    async def run_once(self) -> int:
        """Adopt what others have stored, and store what has changed here; returns how many were stored."""
        return sum([await self._exchange(venue) for venue in self._credentials])

    async def keep(self, venue: VenueName) -> None:
        """Store the venue's pause before the order that met it ends: a crash must not cost a second one."""
        try:
            await self._exchange(venue)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("venue_pauses_not_kept", error=str(error))

    async def _exchange(self, venue: VenueName) -> bool:
        async with self._turns[venue]:
            credential, known = self._credentials[venue], self._known.get(venue)
            if credential.pause != known:
                assert credential.pause is not None, "a pause is never forgotten"
                text = msgspec.json.encode(credential.pause).decode()
                self._known[venue] = credential.pause
                try:
                    await self._commit(Change(cursors=(Cursor(name=pause_name(venue), epoch=0, seq=0, hash=text),)))
                except BaseException:
                    self._known[venue] = known
                    raise
                return True
            stored = await stored_pause(self._journal, venue)
            # Of another worker, or from before a restart. An end is this process's own to find out.
            is_news = stored is not None and stored != known and credential.pause == known
            if stored is not None and is_news and (not stored.is_over or known is None):
                credential.adopt(stored)
                self._known[venue] = credential.pause
            return False


async def stored_pause(journal: Journal, venue: VenueName) -> Pause | None:
    """The last pause of the venue's credential; none if there was none."""
    mark = await journal.cursor(pause_name(venue))
    return None if mark is None else _decode_pause(mark.hash)


def pause_name(venue: VenueName) -> str:
    """The name of the cursor."""
    return f"credential:{venue}"


def is_reported(text: str | None, now: datetime) -> bool:
    """Whether a worker has written the text of a record lately, by the database's time."""
    return text is not None and now - _decode(text).at <= STALE


def health_name(venue: VenueName) -> str:
    """The name of the cursor."""
    return f"health:{venue}"
