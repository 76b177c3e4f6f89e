"""The messages of the control socket and of the back office's connection, lines of JSON, and the socket's address."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from switchyard.domain.errors import (
    KillCleared,
    NotFound,
    OutcomeUnknown,
    RequestError,
    SwitchyardError,
    TooManyKills,
    Unavailable,
)
from switchyard.domain.ids import AccountId, KillId, VenueName
from switchyard.domain.journal.facts import DecisionFact, Quote, Verdict
from switchyard.domain.market.health import Check
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.risk.kills import Kill, KillState, KillView
from switchyard.flow.kill.switch import KillRequest
from switchyard.settings import Settings

# Several times the longest request: a name and a reason of maximum length, in any script.
REQUEST_BYTES_MAX = 16 * 1024
# Several times a kill with a page of its orders, or a page of kills.
ANSWER_BYTES_MAX = 1024 * 1024
# The kernels allow 108 (Linux) and 104 bytes (macOS), including the closing NUL.
ADDRESS_BYTES_MAX = 103


class ResolveDoubt(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="resolve_doubt"
):
    """Record an operator's decision about an uncertain outbox row."""

    id: str
    verdict: Verdict
    by: str
    reason: str
    resend: bool = False

    @property
    def decision(self) -> DecisionFact:
        """The decision as it is recorded."""
        return DecisionFact(verdict=self.verdict, by=self.by, reason=self.reason, resend=self.resend)


class SetKill(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="set_kill"
):
    """Set a kill."""

    request: KillRequest
    wait_seconds: float = 0


class ClearKill(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="clear_kill"
):
    """Clear a kill."""

    kill_id: KillId
    by: str
    reason: str


class ShowKill(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="show_kill"
):
    """Tell what became of a kill's orders."""

    kill_id: KillId


class ListKills(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="list_kills"
):
    """List the newest kills."""

    limit: int


class RunRecheck(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="run_recheck"
):
    """Carry out the unfinished part of a stored recheck, in the background; a repeat changes nothing."""

    request_id: str


class ListVenues(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="list_venues"
):
    """Tell which venues this process sends to."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="beat"):
    """The back office is at work; it has no answer."""

    checks: tuple[Check, ...] = ()
    url: str | None = None
    """Where it listens, once it does."""


class LookUpQuotes(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="look_up_quotes"
):
    """Tell the quotes of these venues and symbols; `waits`: for the first one of a symbol that nobody asked for yet."""

    wanted: tuple[tuple[VenueName, str], ...]
    waits: bool = False


class RestrictStrategy(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="restrict"
):
    """Make an account's strategy reduce-only, in the name of PDCA; a repeat of the id changes nothing."""

    account_id: AccountId
    strategy: str
    reason: str
    kill_id: KillId


class Decided(msgspec.Struct, frozen=True, tag_field="answer", tag="decided"):
    """The decision is in the journal; `order` is the order after it."""

    order: OrderSnapshot


class KillTold(msgspec.Struct, frozen=True, tag_field="answer", tag="kill"):
    """A kill and its orders."""

    kill: KillState


class KillsTold(msgspec.Struct, frozen=True, tag_field="answer", tag="kills"):
    """The newest kills."""

    kills: list[KillView]


class RecheckBegun(msgspec.Struct, frozen=True, tag_field="answer", tag="recheck"):
    """The server works on the recheck; the PDCA store tells how far it is."""


class VenuesTold(msgspec.Struct, frozen=True, tag_field="answer", tag="venues"):
    """The venues that the process sends to."""

    venues: list[VenueName]


class QuotesTold(msgspec.Struct, frozen=True, tag_field="answer", tag="quotes"):
    """The quotes in the order of the request."""

    quotes: tuple[Quote | None, ...]


class Restricted(msgspec.Struct, frozen=True, tag_field="answer", tag="restricted"):
    """The kill that restricts the strategy."""

    kill: Kill


class Declined(msgspec.Struct, frozen=True, tag_field="answer", tag="declined"):
    """The decision was not recorded, or for `unknown` it may have been."""

    why: Literal["request", "missing", "state", "kills", "unavailable", "unknown"]
    message: str

    @classmethod
    def of(cls, error: SwitchyardError) -> "Declined":
        """The reply for an error, with the distinctions that the exit code needs."""
        match error:
            case NotFound():
                return cls("missing", str(error))
            case TooManyKills():
                return cls("kills", str(error))
            case KillCleared():
                return cls("state", str(error))
            case RequestError():
                return cls("request", str(error))
            case Unavailable():
                return cls("unavailable", str(error))
            case OutcomeUnknown():
                return cls("unknown", str(error))
            case _:
                return cls("state", str(error))

    def error(self) -> SwitchyardError:
        """An error with the same message and exit code."""
        kinds: dict[str, type[SwitchyardError]] = {
            "request": RequestError,
            "missing": NotFound,
            "unavailable": Unavailable,
            "unknown": OutcomeUnknown,
            "state": SwitchyardError,
            "kills": TooManyKills,
        }
        return kinds[self.why](self.message)


KillCommand: TypeAlias = SetKill | ClearKill | ShowKill | ListKills
ControlRequest: TypeAlias = ResolveDoubt | RunRecheck | ListVenues | KillCommand
ControlReply: TypeAlias = Decided | KillTold | KillsTold | RecheckBegun | VenuesTold | Declined
OfficeRequest: TypeAlias = Beat | LookUpQuotes | RestrictStrategy
OfficeReply: TypeAlias = QuotesTold | Restricted | Declined


class FromOffice(msgspec.Struct, frozen=True):
    """A line of the back office to its parent."""

    number: int
    """Repeated in the answer."""
    request: OfficeRequest


class ToOffice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the parent to the back office; an empty line says that there may be new events."""

    number: int = 0
    """Of the request that `reply` answers; 0 without one."""
    reply: OfficeReply | None = None
    recheck: str | None = None
    """A recheck to carry out for a command; an empty one says that there may be new requests."""
    beat: bool = False
    """Whether the parent wants a beat at once, because it is asked about its health."""


def socket_path(settings: Settings) -> Path:
    """The socket of the process that holds the SQLite database in this data folder."""
    return settings.data_dir / "control.sock"


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """A path of the socket that fits into a socket address, even in a deeply nested folder."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
