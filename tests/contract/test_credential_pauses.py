"""Pauses of credentials: what an HTTP broker's answers lead to, and how processes share them, on every engine."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from switchyard.adapters.files.secrets import SecretFile, SecretFiles
from switchyard.domain.errors import SettingError
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.flow.health.venues import HealthBoard, HealthReader, PauseKeeper, pause_name
from switchyard.ports.venue import Unsent, VenueRejected, VenueUnavailable
from switchyard.settings import parse
from switchyard.venue.bridge import VenueNames
from switchyard.venue.credentials import ASK_SECONDS, TRIAL_MIN, Credential
from tests.contract.test_http_venue import NO_SPARES, ORDER, a_venue
from tests.support.build import VENUE
from tests.support.databases import Database
from tests.support.memory.clock import ManualClock
from tests.support.scripted_server import reply, scripted_server

ERROR = {"error": "DENIED", "message": "no"}


@pytest.mark.parametrize("body", [ERROR, b"<html>no</html>"])
@pytest.mark.parametrize("status", [401, 403])
async def test_401_and_403_pause_the_credential_of_a_broker_of_our_protocol(status: int, body: object) -> None:
    async with scripted_server(reply(status, body)) as server, a_venue(server.url, **NO_SPARES) as venue:
        outcome = await venue.submit(ORDER)
        assert isinstance(outcome, VenueRejected) == (body == ERROR), "without a readable error the order is in doubt"
        assert venue.credential.reason is not None and f"HTTP {status}" in venue.credential.reason


async def test_an_order_that_was_under_way_waits_for_a_credential_that_works() -> None:
    async with scripted_server(reply(401, ERROR)) as server, a_venue(server.url, **NO_SPARES) as venue:
        outcomes = [await venue.submit(ORDER) for _ in range(2)]
        assert outcomes == [
            VenueRejected("UNAUTHORIZED", "DENIED"),
            Unsent("CREDENTIAL_PAUSED", "DENIED", bytes_sent=True),
        ]


async def test_an_order_that_went_with_the_old_secrets_is_sent_again_with_the_new_ones() -> None:
    async def change(writer: asyncio.StreamWriter) -> None:
        venue.credential.replace({})
        writer.write(reply(401, ERROR))
        await writer.drain()
        writer.close()

    async with scripted_server(change) as server, a_venue(server.url, **NO_SPARES) as venue:
        assert await venue.submit(ORDER) == Unsent("CREDENTIAL_PAUSED", "DENIED", bytes_sent=True)
        assert not venue.credential.is_paused


async def test_without_deduplication_no_order_is_sent_again() -> None:
    async with scripted_server(reply(401, ERROR)) as server, a_venue(server.url, "none", **NO_SPARES) as venue:
        outcomes = [await venue.submit(ORDER) for _ in range(2)]
        assert outcomes == [VenueRejected("UNAUTHORIZED", "DENIED")] * 2


@pytest.mark.parametrize(
    ("status", "options"),
    [
        (400, {}),
        (403, {"final_errors": frozenset({(403, "DENIED")})}),
        (403, {"final_errors": frozenset({(403, None), (403, "DENIED")})}),
        (401, {"final_errors": frozenset()}),
        (500, {}),
    ],
)
async def test_other_answers_and_errors_that_settings_name_with_their_code_do_not(
    status: int, options: dict[str, Any]
) -> None:
    async with scripted_server(reply(status, ERROR)) as server, a_venue(server.url, **NO_SPARES, **options) as venue:
        await venue.submit(ORDER)
        assert not venue.credential.is_paused


async def test_an_account_that_the_settings_lack_is_not_about_the_credential() -> None:
    names = VenueNames(accounts={AccountId("other"): "A-1"})
    async with a_venue("http://127.0.0.1:1", names=names) as venue:
        outcome = await venue.submit(ORDER)
        assert isinstance(outcome, VenueRejected) and outcome.code == "UNAUTHORIZED"
        assert not venue.credential.is_paused


async def test_a_paused_broker_that_rejects_questions_too_gets_one_a_minute() -> None:
    async with scripted_server(reply(401, ERROR)) as server, a_venue(server.url, **NO_SPARES) as venue:
        await venue.submit(ORDER)
        for _ in range(3):
            with pytest.raises(VenueUnavailable):
                await venue.probe()
            with pytest.raises(VenueUnavailable, match=r"HTTP 401|rejects its credential"):
                await venue.reports(None, 10)
        assert len(server.requests) == 2, "the order, and one question"
        clock = venue._clock
        assert isinstance(clock, ManualClock)
        clock.advance(timedelta(seconds=ASK_SECONDS))
        with pytest.raises(VenueUnavailable):
            await venue.reports(None, 10)
        assert len(server.requests) == 3


class Worker:
    """The pauses of one worker; its credential is new, as after a start."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.board = HealthBoard()
        self.credential = Credential(VENUE, {}, clock)
        self._database, self._clock, self.commits = database, clock, 0
        self.board.watch_credentials({VENUE: self.credential})
        self.keeper = PauseKeeper(self.board, {VENUE: self.credential}, database.journal, self.commit)

    async def commit(self, change: Change) -> Outcome:
        self.commits += 1
        group = f"pause-{id(self)}-{self.commits}"
        [outcome] = await self._database.journal.append(0, group, [change], self._clock.now())
        return outcome

    def resume(self) -> None:
        for answered in (False, True):
            self.credential.note_question("probe", is_answered=answered, version=0)


async def test_a_pause_reaches_gateways_and_other_workers_and_outlives_its_worker(database: Database) -> None:
    clock = ManualClock()
    first, other = Worker(database, clock), Worker(database, clock)
    for worker in (first, other):
        await worker.keeper.start()
    gateway = HealthBoard()
    reader = HealthReader(gateway, [VENUE], database.journal, clock)
    first.credential.note_unauthorized("BAD_KEY", 0)
    await first.board.keep_pause(VENUE)
    clock.advance(timedelta(hours=1))
    await reader.run_once()
    assert gateway.pause_of(VENUE) == gateway.reason(VENUE) == first.credential.reason
    assert await other.keeper.run_once() == 0
    assert other.board.paused == other.board.blocked == {VENUE}
    restarted = Worker(database, clock)
    await restarted.keeper.start()
    assert restarted.credential.reason == first.credential.reason
    assert (first.commits, other.commits, restarted.commits) == (1, 0, 0)

    restarted.resume()
    assert await restarted.keeper.run_once() == 1
    await reader.run_once()
    assert gateway.pause_of(VENUE) is None
    await other.keeper.run_once()
    assert other.credential.is_paused, "that its own secrets work it must see itself: its file may be an older one"
    again = Worker(database, clock)
    await again.keeper.start()
    assert not again.credential.is_paused and again.credential.is_trial
    mark = await database.journal.cursor(pause_name(VENUE))
    assert mark is not None and mark.epoch == 0, "a restore would take it for a place in the journal"


async def test_a_pause_that_follows_another_one_is_not_taken_for_it(database: Database) -> None:
    clock = ManualClock()
    first, other = Worker(database, clock), Worker(database, clock)
    for worker in (first, other):
        await worker.keeper.start()
    first.credential.note_unauthorized("BAD_KEY", 0)
    await first.keeper.run_once()
    await other.keeper.run_once()
    other.resume()
    await other.keeper.run_once()
    clock.advance(TRIAL_MIN)
    first.resume()
    await first.keeper.run_once()
    first.credential.note_unauthorized("BAD_KEY", 0)
    await first.keeper.run_once()
    await other.keeper.run_once()
    assert other.credential.is_paused


# Secrets in files.


def parse_keys(text: str) -> Mapping[str, str]:
    try:
        return {"key": "", "note": "", **parse.secret_values(text)}
    except ValueError as error:
        raise SettingError("VENUE_SECRETS_SIM", str(error)) from None


class Folder:
    """A file with the keys of a credential."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys"
        self.path.write_text("key=one\nnote=x")
        self.credential = Credential(VENUE, {"key": "one", "note": "x"}, ManualClock())
        self.is_unreadable = False
        self.files = SecretFiles(
            [SecretFile(setting="VENUE_SECRETS_SIM", path=self.path, parse=parse_keys)],
            self.credential.secrets,
            replace=self.credential.replace,
            note_unreadable=self.note,
        )

    def note(self, is_unreadable: bool) -> None:
        self.is_unreadable = is_unreadable

    async def look(self, times: int = 2) -> tuple[str, bool]:
        for _ in range(times):
            await self.files.run_once()
        return self.credential.secret("key"), self.is_unreadable


async def test_a_changed_file_counts_once_two_looks_have_found_the_same(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert await folder.look() == ("one", False)
    assert folder.credential.version == 0
    folder.path.write_text("key=tw")  # it is being written, and lacks the other one
    assert await folder.look(1) == ("one", True)
    folder.path.write_text("key=tw\nnote=x")
    assert await folder.look(1) == ("one", False)
    folder.path.write_text("key=two\nnote=x")
    assert await folder.look(1) == ("one", False)
    assert await folder.look(1) == ("two", False)
    assert folder.credential.version == 1
    assert await folder.look() == ("two", False)
    assert folder.credential.version == 1


@pytest.mark.parametrize("content", [None, b"", b"# only a comment\n", b"key=\nnote=x", b"note=x", b"\xff\xfe", b"key"])
async def test_a_file_that_cannot_be_read_or_lacks_a_secret_changes_nothing_and_alarms(
    content: bytes | None, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    if content is None:
        folder.path.unlink()
    else:
        folder.path.write_bytes(content)
    assert await folder.look(3) == ("one", True)
    new = folder.path.with_suffix(".new")
    new.write_text("key=two\nnote=x")
    new.replace(folder.path)
    assert await folder.look() == ("two", False)


async def test_a_secret_that_the_broker_repeats_is_neither_shown_nor_stored() -> None:
    async with scripted_server(reply(403, {"error": "the key s3cret-key is not valid"})) as server:
        secrets = {"token": "s3cret-key", "short": "is"}
        async with a_venue(server.url) as venue:
            venue.credential = Credential(VENUE, secrets, ManualClock())
            outcome = await venue.submit(ORDER)
    assert outcome == VenueRejected("UNAUTHORIZED", "the key *** is not valid")
