"""The state of the send-protocol model, and its rules, each of which can be switched off.

One client intent, one key, one venue. Times are counted in ticks; a tick is long enough for a probe of the venue.
"""

from typing import Literal, NamedTuple

from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import TimeInForce
from switchyard.domain.orders.outbox import OutboxStatus
from switchyard.domain.orders.reasons import SendCode
from switchyard.ports.venue import Dedupe

# How long a request may stay in each place: with a sender that looks dead, on the hop, in the venue's input.
STAY_TICKS_MAX = 1
# The proof of absence waits for all three, and one tick longer: what happens between two ticks has no order.
PROOF_TICKS = 3 * STAY_TICKS_MAX + 1
# The venue's deduplication time in the class `ttl`: leaves a time in which a resend seems safe.
TTL_TICKS = PROOF_TICKS + 1

Place = Literal[
    "sender",  # the attempt is committed, nothing is written; its process lives
    "zombie",  # the same, but the process has lost its session lock: to others it looks dead
    "kernel",  # written, still in our kernel; the sender waits for the answer
    "orphaned",  # the same, but the sender has given up or died, and the kernel still retransmits
    "hop",  # between our kernel and the venue: the network, a proxy
    "input",  # in the venue's input queue
]
History = Literal[
    "newest",
    "older",  # a backup was put in its place
    "restoring",  # `db restored` has opened the epoch, the rows are not in doubt yet
    "restored",
]


class Rules(NamedTuple):
    """What the product does; each rule can be switched off to show which fault it prevents."""

    zero_linger: bool = True
    """Giving up, or dying, destroys the request that the kernel still holds."""
    answering_since: bool = True
    """The proof of absence counts only the time in which the venue has answered without a pause."""
    monotonic_window: bool = True
    """A step of the wall clock does not shorten the proof of absence."""
    absent_keeps_id: bool = True
    """Proven absent settles one client order id and never permits another one."""
    errors_are_not_pages: bool = True
    """A venue that answers with an error has not been read: it stays closed."""
    strays_filed: bool = True
    """Open orders at the venue that the database does not know are recorded, like reports on unknown orders."""
    restore_is_atomic: bool = True
    """No process starts before `db restored` has brought every unfinished row into doubt."""
    old_state_noticed: bool = True
    """No process starts on an older database before `db restored`."""
    evidence_wins: bool = True
    """An operator's `not-sent` ends an order in doubt; it does not send it again."""
    restored_venue_waits: bool = True
    """After a restore a venue opens once it has answered for the whole proof time: a request that the lost history
    sent may still be on its way."""
    restored_keys_keep_id: bool = True
    """After a restore no key starts a new generation: the lost history may have sent the order that looks unsent."""
    strays_of_later_generations: bool = True
    """An order is held back if the venue has an order of its own or of a later generation of its key."""
    queued_strays_doubted: bool = True
    """An order that was accepted before its venue was read, and that the venue already has, goes into doubt."""
    ttl_needs_proof: bool = True
    """Also within the venue's deduplication time a resend needs the proof of absence."""


class Assumptions(NamedTuple):
    """What the model assumes about the venue, the path to it and the order."""

    dedupe: Dedupe
    time_in_force: TimeInForce = "GTC"
    path_stalls: bool = False
    """Whether a request may stay on its way for longer than documented, while lookups and probes are answered."""


class Record(NamedTuple):
    """What the database has about the intent's newest order: the fields of `Order` and `OutboxRow` that decide."""

    generation: int
    status: Status
    row: OutboxStatus
    attempted: bool = False
    own_attempt: bool = False
    """Whether the sender of the current attempt is the process that runs now."""
    bytes_sent: bool = False
    at_venue: bool = False
    """Whether the venue's order id is known."""
    filled: bool = False
    reason: str | None = None
    code: SendCode | None = None


class Copy(NamedTuple):
    """One request on its way to the venue."""

    generation: int
    place: Place
    ticks: int = 0


class VenueOrder(NamedTuple):
    """The venue's orders under one client order id, which is one generation of the key."""

    generation: int
    is_open: bool = True
    ticks: int = 0
    """Since it was accepted, up to TTL_TICKS."""


class Budget(NamedTuple):
    """How often each fault and action may still happen; makes the search finite."""

    attempts: int = 3
    crashes: int = 2
    freezes: int = 1
    cuts: int = 1
    clock_steps: int = 1
    verdicts: int = 1
    restores: int = 1


class State(NamedTuple):
    """Everything there is: database, process, requests on their way, venue, and the time that was waited."""

    record: Record | None = None
    strays: frozenset[int] = frozenset()
    backup: tuple[Record | None, frozenset[int]] | None = None
    history: History = "newest"
    is_alive: bool = True
    is_heard: bool = True
    """Whether this process has read the venue's reports and open orders, so that it may send."""
    waited: int = 0
    """Ticks since the last sender gave up and, with `answering_since`, since the venue has been answering."""
    first_sent: int | None = None
    """Ticks since this process made the order's first attempt, up to TTL_TICKS; none after a restart."""
    copies: tuple[Copy, ...] = ()
    orders: tuple[VenueOrder, ...] = ()
    is_frozen: bool = False
    is_cut: bool = False
    is_late: bool = False
    """Whether the send deadline of an IOC order has passed."""
    budget: Budget = Budget()

    @property
    def is_reachable(self) -> bool:
        """Whether the venue answers a question."""
        return not self.is_frozen and not self.is_cut
