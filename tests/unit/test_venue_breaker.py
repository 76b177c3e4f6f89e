"""The circuit breaker of a venue, on a clock that the test moves."""

from datetime import timedelta

import pytest

from switchyard.domain.ids import AccountId
from switchyard.flow.health.venues import FAULTY_MAX, PAUSE_MAX, UNHEARD_SECONDS, HealthBoard, VenueBreaker
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent, VenueRejected
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, VENUE
from tests.support.memory.clock import ManualClock

ACCEPTED = Accepted("v-1")
TIMEOUT = Ambiguous("NETWORK_TIMEOUT")
PAUSE = timedelta(seconds=2)


class Watched:
    """A breaker that opens after three faults, and what the board says of it."""

    def __init__(self, faults_max: int = 3) -> None:
        self.clock, self.metrics, self.board = ManualClock(), Metrics(), HealthBoard()
        self.breaker = VenueBreaker(VENUE, faults_max=faults_max, pause=PAUSE, clock=self.clock, metrics=self.metrics)
        self.board.watch([self.breaker])
        self.changes = 0
        self.board.on_change = self.count

    def count(self) -> None:
        self.changes += 1

    def sends(self, *outcomes: SendOutcome) -> None:
        self.board.note_sends(VENUE, [ACCOUNT] * len(outcomes), outcomes, 0.01)

    def probes(self, *failures: str | None) -> None:
        for failure in failures:
            self.clock.advance(timedelta(seconds=1))
            self.breaker.note_probe(failure)

    def state(self) -> str:
        return self.breaker.state

    def recover(self) -> None:
        self.clock.advance(PAUSE_MAX)
        self.probes(None, None)

    @property
    def gauge(self) -> float | None:
        return self.metrics.registry.get_sample_value("venue_breaker_state", {"venue": VENUE})


@pytest.mark.parametrize(
    "fault",
    [
        Unsent("BROKER_DOWN"),
        Unsent("RATE_LIMITED", bytes_sent=True),
        TIMEOUT,
        Ambiguous("NETWORK_DISCONNECTED"),
        Ambiguous("BROKER_5XX"),
    ],
)
def test_it_opens_after_the_last_fault_in_a_row(fault: SendOutcome) -> None:
    watched = Watched()
    watched.sends(fault, fault, ACCEPTED, fault, fault)
    assert watched.board.blocked == frozenset()
    watched.sends(fault)
    assert (watched.state(), watched.board.blocked, watched.changes) == ("open", frozenset({VENUE}), 1)
    assert watched.gauge == 2
    reason = watched.board.reason(VENUE)
    assert reason is not None and reason.startswith("3 faults in a row, the last: ")


def test_rejections_and_what_never_left_this_process_are_no_faults() -> None:
    watched = Watched(faults_max=1)
    watched.sends(*[VenueRejected("BAD_REQUEST")] * 50, Unsent("ATTEMPT_STALE"), Unsent("TURN_TIMEOUT"))
    watched.sends(Unsent("KILL_SWITCH"), Unsent("DEADLINE_PASSED"), Ambiguous("CONFLICT"))
    assert watched.state() == "closed"


def test_a_rejection_ends_a_row_of_faults_because_the_venue_answered() -> None:
    watched = Watched()
    for _ in range(5):
        watched.sends(TIMEOUT, TIMEOUT, VenueRejected("BAD_REQUEST"))
    assert watched.state() == "closed"


def test_good_probes_do_not_hide_that_orders_fail() -> None:
    watched = Watched()
    for _ in range(3):
        watched.sends(Ambiguous("BROKER_5XX"))
        watched.probes(None)
    assert watched.state() == "open"


def test_failed_probes_open_it_without_an_order() -> None:
    watched = Watched()
    watched.probes("refused", "refused")
    assert watched.state() == "closed"
    watched.probes("refused")
    assert watched.state() == "open"


def test_it_is_half_open_after_the_pause_and_reads_close_it() -> None:
    watched = Watched()
    watched.sends(TIMEOUT, TIMEOUT, TIMEOUT)
    watched.probes(None)
    assert watched.state() == "open", "a probe within the pause says nothing yet"
    watched.clock.advance(timedelta(seconds=1))
    assert watched.state() == "half_open"
    watched.probes(None)
    assert watched.state() == "half_open", "one good probe is not enough"
    watched.probes("refused")
    assert watched.state() == "open", "the pause starts anew"
    watched.clock.advance(PAUSE)
    watched.probes(None, None)
    assert (watched.state(), watched.board.blocked, watched.changes, watched.gauge) == ("closed", frozenset(), 2, 0)
    assert watched.board.reason(VENUE) is None


def test_after_a_pause_one_order_at_a_time_until_one_is_answered() -> None:
    watched = Watched()
    watched.sends(TIMEOUT, TIMEOUT, TIMEOUT)
    watched.recover()
    assert watched.board.is_trial(VENUE)
    watched.sends(ACCEPTED)
    assert not watched.board.is_trial(VENUE)
    watched.sends(TIMEOUT, TIMEOUT)
    assert watched.state() == "closed", "it counts from the start again"


def test_each_failed_first_order_doubles_the_pause_up_to_a_minute() -> None:
    watched = Watched()
    watched.sends(TIMEOUT, TIMEOUT, TIMEOUT)
    pauses: list[float] = []
    for _ in range(8):
        watched.recover()
        watched.sends(TIMEOUT)
        assert watched.state() == "open"
        opened_at = watched.clock.monotonic()
        while watched.state() == "open":
            watched.clock.advance(timedelta(seconds=1))
        pauses.append(watched.clock.monotonic() - opened_at)
    assert pauses == [4, 8, 16, 32, 60, 60, 60, 60]
    watched.recover()
    watched.sends(ACCEPTED, TIMEOUT, TIMEOUT, TIMEOUT)
    watched.clock.advance(PAUSE)
    assert watched.state() == "half_open", "an answered order makes the pause short again"


def test_a_probe_that_hangs_opens_it_at_once() -> None:
    watched = Watched()
    watched.breaker.note_hanging(2.0)
    assert watched.state() == "open"


def test_reports_that_cannot_be_read_open_it_and_must_be_heard_before_it_closes() -> None:
    watched = Watched()
    watched.breaker.note_reports("HTTP 500")
    watched.probes(None)
    assert watched.state() == "closed", "a short failure is repeated first"
    watched.clock.advance(timedelta(seconds=UNHEARD_SECONDS))
    watched.breaker.note_reports("HTTP 500")
    assert watched.board.reason(VENUE) == "its reports cannot be read: HTTP 500"
    assert watched.board.unheard == frozenset({VENUE}), "it still gets cancels"
    watched.recover()
    assert watched.state() == "half_open", "fills would not be heard"
    watched.breaker.note_reports(None)
    watched.probes(None, None)
    assert watched.state() == "closed"


def test_a_venue_that_then_stops_answering_gets_no_cancels_either() -> None:
    watched = Watched()
    watched.breaker.note_reports("HTTP 500")
    watched.clock.advance(timedelta(seconds=UNHEARD_SECONDS))
    watched.breaker.note_reports("HTTP 500")
    watched.probes("refused")
    assert (watched.board.unheard, watched.board.blocked) == (frozenset(), frozenset({VENUE}))
    assert watched.board.reason(VENUE) == "refused"


def test_answers_to_orders_that_were_under_way_do_not_close_it() -> None:
    watched = Watched()
    watched.sends(TIMEOUT, TIMEOUT, TIMEOUT, ACCEPTED, ACCEPTED)
    assert watched.state() == "open"


def test_with_no_number_of_faults_it_never_opens() -> None:
    watched = Watched(faults_max=0)
    watched.sends(*[TIMEOUT] * 20)
    watched.probes(*["refused"] * 20)
    watched.breaker.note_hanging(2.0)
    watched.breaker.note_reports("HTTP 500")
    watched.clock.advance(timedelta(minutes=1))
    watched.breaker.note_reports("HTTP 500")
    assert watched.state() == "closed"


OTHER = AccountId("other")


def ended(watched: Watched, account: AccountId, *outcomes: SendOutcome, seconds: float = 5) -> None:
    """Orders of the account that were sent together have ended after this time."""
    watched.board.note_sends(VENUE, [account] * len(outcomes), outcomes, seconds)


def test_orders_of_one_account_that_hang_do_not_open_it_while_those_of_another_are_answered() -> None:
    watched = Watched()
    ended(watched, OTHER, ACCEPTED, seconds=0.01)
    watched.clock.advance(timedelta(seconds=1))
    ended(watched, ACCOUNT, *[TIMEOUT] * 60)
    assert watched.state() == "closed"
    assert watched.breaker.is_suspect(ACCOUNT) and not watched.breaker.is_suspect(OTHER)
    ended(watched, ACCOUNT, ACCEPTED)
    assert not watched.breaker.is_suspect(ACCOUNT)


def test_orders_that_were_sent_after_the_last_answer_to_another_account_open_it() -> None:
    watched = Watched()
    ended(watched, OTHER, ACCEPTED, seconds=0.01)
    watched.clock.advance(timedelta(seconds=10))
    ended(watched, ACCOUNT, *[TIMEOUT] * 3)
    assert watched.state() == "open"


def test_a_venue_that_answers_probes_takes_an_order_of_an_account_without_a_fault_while_it_is_open() -> None:
    watched = Watched()
    ended(watched, ACCOUNT, *[TIMEOUT] * 3)
    assert (watched.state(), watched.board.ajar) == ("open", frozenset())
    watched.recover()
    ended(watched, ACCOUNT, TIMEOUT)  # the first order after the pause hangs too
    assert watched.state() == "open"
    watched.probes(None, None)
    assert (watched.state(), watched.board.ajar) == ("open", frozenset({VENUE}))
    ended(watched, OTHER, ACCEPTED, seconds=0.01)
    assert (watched.state(), watched.board.is_trial(VENUE)) == ("closed", False)
    assert watched.breaker.is_suspect(ACCOUNT)
    watched.clock.advance(timedelta(seconds=10))
    ended(watched, ACCOUNT, *[TIMEOUT] * 5)
    assert watched.state() == "closed", "the other account has been answered within the last minute"
    watched.clock.advance(PAUSE_MAX)
    ended(watched, ACCOUNT, *[TIMEOUT] * 3)
    assert watched.state() == "open"


@pytest.mark.parametrize("failure", ["probe", "reports", "hanging"])
def test_a_venue_that_does_not_answer_probes_takes_no_order_while_it_is_open(failure: str) -> None:
    watched = Watched()
    if failure == "hanging":
        watched.breaker.note_hanging(2)
        watched.probes(None)
    ended(watched, ACCOUNT, *[TIMEOUT] * 3)
    if failure == "probe":
        watched.probes(None, "no answer")
    elif failure == "reports":
        watched.breaker.note_reports("no answer")
        watched.probes(None)
    watched.probes(None)
    assert (watched.state(), watched.board.ajar) != ("closed", frozenset({VENUE}))
    assert watched.board.ajar == frozenset()


def test_the_accounts_whose_orders_fail_are_bounded() -> None:
    watched = Watched()
    for number in range(FAULTY_MAX + 10):
        ended(watched, AccountId(f"account-{number}"), TIMEOUT)
    assert len(watched.breaker.faulty) == FAULTY_MAX
