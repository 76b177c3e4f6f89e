"""The credential of a venue: when it is paused, what ends the pause, and how its secrets change while it is used."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from switchyard.domain.orders.order import Order
from switchyard.flow.health.venues import HealthBoard, VenueBreaker
from switchyard.ports.venue import Accepted, SendOutcome, VenueRejected
from switchyard.settings import parse
from switchyard.telemetry.logs import configure_logs, mask_also, redactor
from switchyard.telemetry.metrics import Metrics
from switchyard.venue.credentials import ASK_SECONDS, TRIAL_MAX, TRIAL_MIN, Credential
from tests.support.build import VENUE
from tests.support.memory.clock import ManualClock
from tests.support.sending import BatchVenue, Sending

SECOND = timedelta(seconds=1)
KEYS = {"key": "one"}
RETRIES = timedelta(seconds=561)


class Site:
    """A credential and what happens to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.credential = Credential(VENUE, KEYS, self.clock)

    def reject(self) -> None:
        self.credential.note_unauthorized("BAD_KEY", self.credential.version)

    def ask(self, *questions: str, answered: bool = True, version: int | None = None) -> None:
        version = self.credential.version if version is None else version
        for question in questions:
            name = question if question in ("probe", "reports") else None
            self.credential.note_question(name, is_answered=answered, version=version)  # type: ignore[arg-type]


def test_the_first_rejection_pauses_and_says_why() -> None:
    site = Site()
    assert (site.credential.is_paused, site.credential.reason) == (False, None)
    site.reject()
    assert site.credential.reason == "the venue rejects its credential (BAD_KEY)"


def test_it_is_used_again_when_what_the_venue_rejected_is_answered() -> None:
    site = Site()
    site.reject()
    site.ask("probe", "reports", answered=False)
    site.ask("probe")
    assert site.credential.is_paused, "its reports are still rejected"
    site.ask("reports")
    assert not site.credential.is_paused
    assert site.credential.is_trial, "one order at a time, until the venue has answered one"
    site.credential.note_message(site.credential.version)
    assert not site.credential.is_trial


def test_answers_that_it_always_gave_prove_nothing() -> None:
    site = Site()
    site.reject()
    site.clock.advance(TRIAL_MIN - SECOND)
    site.ask("probe", "reports")
    assert site.credential.is_paused
    site.clock.advance(SECOND)
    site.ask("probe")
    assert site.credential.is_trial, "only an order can tell"


def test_each_trial_that_fails_is_followed_by_a_longer_wait() -> None:
    site = Site()
    site.reject()
    waits = []
    for _ in range(6):
        waited = timedelta()
        while site.credential.is_paused:
            site.clock.advance(SECOND)
            waited += SECOND
            site.ask("probe")
        waits.append(waited)
        site.reject()
    assert waits == [min(TRIAL_MIN * 2**number, TRIAL_MAX) for number in range(6)]


def test_changed_secrets_are_used_once_the_venue_has_answered_a_question_with_them() -> None:
    site = Site()
    site.reject()
    site.ask("probe")
    site.credential.replace({"key": "two"})
    assert site.credential.is_paused
    site.ask("probe", version=0)
    assert site.credential.is_paused, "that answer was for the old ones"
    site.ask("probe")
    assert not site.credential.is_paused
    assert site.credential.secret("key") == "two"


def test_a_rejection_of_the_old_secrets_says_nothing_about_the_new_ones() -> None:
    site = Site()
    site.credential.replace({"key": "two"})
    site.credential.note_unauthorized("BAD_KEY", 0)
    assert not site.credential.is_paused


def test_a_venue_that_rejects_questions_is_asked_rarely_and_at_once_with_changed_secrets() -> None:
    site = Site()
    site.reject()
    assert site.credential.may_ask()
    site.ask("other", answered=False)
    assert not site.credential.may_ask()
    site.clock.advance(timedelta(seconds=ASK_SECONDS - 1))
    assert not site.credential.may_ask()
    site.clock.advance(SECOND)
    assert site.credential.may_ask()
    site.ask("probe", answered=False)
    site.credential.replace({"key": "two"})
    assert site.credential.may_ask()
    site.ask("probe", answered=False)
    assert not site.credential.may_ask()


def test_a_process_that_starts_goes_on_where_another_one_was() -> None:
    before = Site()
    before.reject()
    assert before.credential.pause is not None
    after = Site()
    after.credential.adopt(before.credential.pause)
    assert after.credential.reason == before.credential.reason
    after.ask("probe", "reports")
    assert after.credential.is_paused, "its questions were answered then, too"
    after.clock.advance(TRIAL_MIN)
    after.ask("probe")
    over = after.credential.pause
    assert over is not None and over.is_over
    last = Site()
    last.credential.adopt(over)
    assert last.credential.is_trial, "no order has shown yet that it works"
    assert last.credential.resumed_at == over.at
    last.reject()
    assert last.credential.pause is not None and last.credential.pause.trial_wait == 2 * TRIAL_MIN


# What it means for orders.


def rejected(orders: Sequence[Order]) -> list[SendOutcome]:
    return [VenueRejected("UNAUTHORIZED", "BAD_KEY") for _ in orders]


def accepted(orders: Sequence[Order]) -> list[SendOutcome]:
    return [Accepted(f"v-{order.order_id}") for order in orders]


class Trade:
    """A worker with a credential whose venue rejects it from the first order on."""

    def __init__(self) -> None:
        self.health = HealthBoard()
        self.venue = BatchVenue("while_open", self.reject, accepted, accepted, accepted, batch_max=1)
        self.sending = Sending(self.venue, health=self.health)
        self.credential = Credential(VENUE, KEYS, self.sending.clock)
        self.health.watch_credentials({VENUE: self.credential})
        self.kept: list[str] = []

        async def keep(_venue: str) -> None:
            self.kept += self.sending.row_statuses()

        self.health.keep_pause = keep

    def reject(self, orders: Sequence[Order]) -> list[SendOutcome]:
        self.credential.note_unauthorized("BAD_KEY", 0)
        return rejected(orders)

    async def run(self) -> None:
        await self.sending.lanes.renew()
        await self.sending.dispatcher.run_once()
        while await self.sending.dispatcher.recover_once():
            pass
        await self.sending.dispatcher.drain(10)

    def status(self, order_id: str) -> str:
        return self.sending.state(order_id).order.status  # type: ignore[arg-type]


async def test_one_order_ends_and_those_behind_it_wait_however_long_and_are_sent_then() -> None:
    trade = Trade()
    ids = await trade.sending.accept(3)
    await trade.run()
    assert len(trade.venue.sent) == 1, "the others had begun their attempts, and were not sent"
    met = trade.venue.sent[0]
    waiting = [order_id for order_id in ids if order_id != met]
    assert [trade.status(met), *map(trade.status, waiting)] == ["REJECTED", "ACCEPTED", "ACCEPTED"]
    assert trade.kept and "dead" not in trade.kept, "the pause is stored before that order ends"
    trade.sending.clock.advance(10 * RETRIES)
    await trade.run()
    assert set(map(trade.status, waiting)) == {"ACCEPTED"}

    trade.credential.replace({"key": "two"})
    trade.credential.note_question("probe", is_answered=True, version=1)
    assert not trade.health.blocked
    await trade.run()
    assert len(trade.venue.sent) == 2, "one at a time, until the venue has answered one"
    trade.credential.note_message(1)
    await trade.run()
    assert sorted(trade.venue.sent) == sorted(ids)


async def test_a_venue_that_is_hardly_asked_does_not_open_its_breaker_as_well() -> None:
    site, health = Site(), HealthBoard()
    breaker = VenueBreaker(VENUE, faults_max=3, pause=SECOND, clock=site.clock, metrics=Metrics())
    health.watch([breaker])
    health.watch_credentials({VENUE: site.credential})
    site.reject()
    assert (health.blocked, health.unheard) == (frozenset({VENUE}), frozenset())
    for _ in range(10):
        site.clock.advance(SECOND)
        breaker.note_probe("it is paused")
        breaker.note_reports("it is paused")
    assert breaker.is_closed
    site.ask("probe", answered=False)
    site.ask("probe")
    assert not health.blocked
    for _ in range(3):
        breaker.note_probe("no answer")
    assert not breaker.is_closed


async def test_an_order_with_a_send_deadline_expires_meanwhile() -> None:
    trade = Trade()
    trade.credential.note_unauthorized("BAD_KEY", 0)
    [order_id] = await trade.sending.accept(time_in_force="IOC")
    trade.sending.clock.advance(10 * SECOND)
    await trade.run()
    assert (trade.status(order_id), trade.venue.sent) == ("EXPIRED", [])


# Their text, and the logs.


def test_a_file_of_secrets_may_have_comments_and_values_of_several_lines() -> None:
    pem = "private_key=\n  -----BEGIN-----\n  # not a part\n  abc=\n\n  -----END-----\n"
    text = f"# of the desk\n\nkey=a,b=\n{pem}last = c"
    read = parse.secret_values(text)
    assert read == {"key": "a,b=", "private_key": "-----BEGIN-----\nabc=\n-----END-----\n", "last": "c"}
    assert "abc" not in repr(read)
    assert parse.secret_values("key=a\n  secret=b") == {"key": "a", "secret": "b"}, "as before"
    assert parse.option_values("a=b, c=#d") == {"a": "b", "c": "#d"}
    with pytest.raises(ValueError, match="must look like"):
        parse.secret_values("private_key=\n-----BEGIN-----")


def test_logs_mask_secrets_that_were_read_after_the_start_and_each_line_of_a_long_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import structlog

    assert redactor(["first-line\nsecond-line"])("x second-line first-line") == "x *** ***"
    configure_logs("info", "text", ["known-secret"])
    mask_also(["later-secret"])
    structlog.get_logger().info("something", text="later-secret known-secret")
    assert capsys.readouterr().err.count("***") == 2
