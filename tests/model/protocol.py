"""The actions of the send-protocol model: what the product, the network, the venue and people may do next.

`Protocol.successors` yields every possible next state with the name of the action. The product's steps use the
product's own decisions; the rules that are not pure decisions (who may resend, who may start) are written out here.
"""

from collections.abc import Iterator

from switchyard.domain.orders.lifecycle import is_final
from tests.model.copies import added, in_order, moved, without
from tests.model.decide import Decisions, new_record
from tests.model.state import (
    PROOF_TICKS,
    STAY_TICKS_MAX,
    TTL_TICKS,
    Assumptions,
    Copy,
    Record,
    Rules,
    State,
    VenueOrder,
)

Step = tuple[str, State]
GENERATIONS_MAX = 2


class Protocol:
    """The protocol under some rules and assumptions."""

    def __init__(self, rules: Rules, assumptions: Assumptions) -> None:
        self._rules = rules
        self._assumptions = assumptions
        self._decisions = Decisions(assumptions)

    def successors(self, state: State) -> Iterator[Step]:
        """Every next state, with the action that leads to it."""
        for action, following in self._steps(state):
            yield action, self._without_irrelevant(following)

    def _without_irrelevant(self, state: State) -> State:
        """The state without the times that no rule looks at: states that differ only in them are one state."""
        record, assumptions = state.record, self._assumptions
        in_doubt = record is not None and record.row == "uncertain"
        if state.waited and not in_doubt and (state.is_heard or state.history != "restored"):
            state = state._replace(waited=0)
        if state.first_sent is not None and (assumptions.dedupe != "ttl" or self._rules.ttl_needs_proof):
            state = state._replace(first_sent=None)
        if state.is_late and assumptions.time_in_force != "IOC":
            state = state._replace(is_late=False)
        if state.orders and assumptions.dedupe != "ttl" and any(order.ticks for order in state.orders):
            state = state._replace(orders=tuple(order._replace(ticks=0) for order in state.orders))
        return state

    def _steps(self, state: State) -> Iterator[Step]:
        yield from self._client(state)
        if state.is_alive:
            yield from self._process(state)
            if state.record is not None:
                yield from self._sender(state, state.record)
                yield from self._resolver(state, state.record)
        yield from self._faults(state)
        yield from self._path(state)
        yield from self._venue(state)
        yield from self._people(state)
        yield from self._time(state)

    # The client

    def _client(self, state: State) -> Iterator[Step]:
        if not state.is_alive:
            return
        if state.record is None:
            yield "the client posts the key", self._accepted(state, 0)
        elif state.record.generation + 1 < GENERATIONS_MAX and self._may_start_generation(state, state.record):
            yield "the client repeats the key: a new generation", self._accepted(state, state.record.generation + 1)

    def _accepted(self, state: State, generation: int) -> State:
        return state._replace(record=new_record(generation), is_late=False, waited=0, first_sent=None)

    def _may_start_generation(self, state: State, record: Record) -> bool:
        if not is_final(record.status):
            return False
        if not self._rules.absent_keeps_id:
            return self._decisions.may_start_generation(record)
        if not self._decisions.is_proven_unsent(record):
            return False
        return state.history == "newest" or not self._rules.restored_keys_keep_id

    # The process: start, recovery, reports

    def _process(self, state: State) -> Iterator[Step]:
        rules, record = self._rules, state.record
        if not state.is_heard and state.is_reachable and self._may_open(state):
            yield "the process reads the venue and opens it", self._heard(state)
        if not state.is_heard and not state.is_reachable and not rules.errors_are_not_pages:
            yield "the process takes an error for an empty page", state._replace(is_heard=True)
        if record is not None and record.row == "sending" and not record.own_attempt:
            doubtful = self._decisions.lost(record, "SENDER_DIED", state.is_late)
            yield "recovery: the sender is dead", state._replace(record=doubtful, waited=0)
        for order in state.orders:
            if order.is_open or not state.is_reachable:
                continue
            if record is None or record.generation != order.generation:
                if order.generation not in state.strays:
                    yield "a report on an unknown order", state._replace(strays=state.strays | {order.generation})
            elif not record.filled:
                yield "a report: the order is filled", state._replace(record=self._decisions.reported(record))

    def _may_open(self, state: State) -> bool:
        waits = self._rules.restored_venue_waits and state.history == "restored"
        return not waits or state.waited >= PROOF_TICKS

    def _heard(self, state: State) -> State:
        record = state.record
        known = -1 if record is None else record.generation
        seen = {order.generation for order in state.orders if self._rules.strays_filed or not order.is_open}
        after = state._replace(is_heard=True, strays=state.strays | (seen - {known}))
        is_there = any(order.generation == known for order in state.orders)
        if record is None or record.row != "queued" or not is_there or not self._rules.queued_strays_doubted:
            return after
        return after._replace(record=self._decisions.doubted(record, "EXECUTED_BEFORE"))

    # The sender

    def _sender(self, state: State, record: Record) -> Iterator[Step]:
        decisions, generation = self._decisions, record.generation
        if record.row in ("queued", "failed") and record.status in ("ACCEPTED", "UNKNOWN"):
            is_late = state.is_late and self._assumptions.time_in_force == "IOC"
            if record.status == "ACCEPTED" and is_late:
                yield "the send deadline passed", state._replace(record=decisions.expired(record))
            elif not state.is_heard:
                pass
            elif self._is_stray(state, generation):
                doubtful = decisions.doubted(record, "EXECUTED_BEFORE")
                yield "the order is a stray: it goes into doubt", state._replace(record=doubtful, waited=0)
            elif state.budget.attempts:
                attempt = decisions.attempt(record)._replace(own_attempt=True)
                yield (
                    "an attempt is committed",
                    self._spent(state, "attempts")._replace(
                        record=attempt,
                        copies=added(state.copies, Copy(generation, "sender")),
                        first_sent=state.first_sent if record.attempted else 0,
                    ),
                )
        if record.row != "sending" or not record.own_attempt:
            return
        waiting = Copy(generation, "sender")
        for copy in state.copies:
            if copy.place == "sender":
                waiting = copy
                written = moved(state.copies, copy, "kernel")
                yield "the request is written", state._replace(copies=written)
                unsent = decisions.unsent(record, state.is_late)
                yield (
                    "no connection: proven unsent",
                    state._replace(record=unsent, copies=without(state.copies, copy), waited=0),
                )
        if waiting in state.copies:
            return
        is_there = any(order.generation == generation for order in state.orders)
        if state.is_reachable and is_there and not any(copy.place == "kernel" for copy in state.copies):
            yield "the venue's answer arrives", state._replace(record=decisions.sent(record))
        doubtful = decisions.lost(record, "SENDER_DIED", state.is_late)
        copies = self._abandoned(state.copies)
        yield "the sender gives up", state._replace(record=doubtful, copies=copies, waited=0)

    def _is_stray(self, state: State, generation: int) -> bool:
        if self._rules.strays_of_later_generations:
            return any(stray >= generation for stray in state.strays)
        return generation in state.strays

    def _abandoned(self, copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
        """The requests after their sender gave up: with a zero linger, the kernel drops those that it holds."""
        if self._rules.zero_linger:
            return tuple(copy for copy in copies if copy.place != "kernel")
        return in_order(copy._replace(place="orphaned", ticks=0) if copy.place == "kernel" else copy for copy in copies)

    # The resolver

    def _resolver(self, state: State, record: Record) -> Iterator[Step]:
        if record.row != "uncertain":
            return
        decisions = self._decisions
        if state.is_reachable and any(order.generation == record.generation for order in state.orders):
            yield "a lookup finds the order", state._replace(record=decisions.sent(record))
        elif state.is_reachable and self._is_proven_absent(state, record):
            yield "a lookup finds nothing: proven absent", state._replace(record=self._absent(state, record))
        if self._assumptions.dedupe != "ttl" or self._rules.ttl_needs_proof or state.first_sent is None:
            return
        if state.first_sent <= TTL_TICKS - PROOF_TICKS:  # the documented time less the second request's longest way
            again = record._replace(row="failed")
            yield "resend within the venue's deduplication time", state._replace(record=again)

    def _is_proven_absent(self, state: State, record: Record) -> bool:
        if self._assumptions.dedupe == "none" or record.code == "EXECUTED_BEFORE":
            return False
        return state.waited >= PROOF_TICKS

    def _absent(self, state: State, record: Record) -> Record:
        if not self._rules.absent_keeps_id:
            return self._decisions.requeued(record, state.is_late)
        return self._decisions.absent(record, state.is_late)

    # Faults

    def _faults(self, state: State) -> Iterator[Step]:
        budget = state.budget
        if state.is_alive and budget.crashes:
            dead = self._spent(state, "crashes")._replace(is_alive=False, is_heard=False, waited=0, first_sent=None)
            if dead.record is not None:
                dead = dead._replace(record=dead.record._replace(own_attempt=False))
            killed = tuple(copy for copy in self._abandoned(state.copies) if copy.place != "sender")
            yield "kill -9", dead._replace(copies=killed)
            if any(copy.place == "sender" for copy in state.copies):
                zombies = in_order(
                    copy._replace(place="zombie", ticks=0) if copy.place == "sender" else copy
                    for copy in self._abandoned(state.copies)
                )
                yield "the session lock is lost in mid-send", dead._replace(copies=zombies)
        if not state.is_alive and self._may_start(state):
            yield "a process starts", state._replace(is_alive=True, waited=0)
        waited = 0 if self._rules.answering_since else state.waited
        if state.is_frozen:
            yield "the venue continues", state._replace(is_frozen=False)
        elif budget.freezes:
            yield "the venue is stopped", self._spent(state, "freezes")._replace(is_frozen=True, waited=waited)
        if state.is_cut:
            yield "the network heals", state._replace(is_cut=False)
        elif budget.cuts:
            yield "the network is cut", self._spent(state, "cuts")._replace(is_cut=True, waited=waited)
        if budget.clock_steps and not self._rules.monotonic_window and state.is_alive:
            yield "the wall clock steps ahead", self._spent(state, "clock_steps")._replace(waited=PROOF_TICKS)

    def _may_start(self, state: State) -> bool:
        match state.history:
            case "older":
                return not self._rules.old_state_noticed
            case "restoring":
                return not self._rules.restore_is_atomic
            case _:
                return True

    # The way to the venue, and the venue

    def _path(self, state: State) -> Iterator[Step]:
        for copy in dict.fromkeys(state.copies):
            match copy.place:
                case "sender":
                    continue  # moved by the sender
                case "zombie" | "kernel" | "orphaned":
                    if not state.is_cut:
                        on_hop = moved(state.copies, copy, "hop")
                        yield f"a request leaves the {copy.place}", state._replace(copies=on_hop)
                case "hop":
                    yield (
                        "a request reaches the venue's input",
                        state._replace(copies=moved(state.copies, copy, "input")),
                    )
                case "input":
                    pass
            if copy.place != "kernel":  # a lost request there is a give-up
                yield "a request is lost", state._replace(copies=without(state.copies, copy))

    def _venue(self, state: State) -> Iterator[Step]:
        if state.is_frozen:
            return
        for copy in dict.fromkeys(state.copies):
            if copy.place == "input":
                left = state._replace(copies=without(state.copies, copy))
                if any(self._recognises(order, copy) for order in state.orders):
                    yield "the venue recognises the client order id", left
                else:
                    order = VenueOrder(copy.generation)
                    yield "the venue executes the order", left._replace(orders=tuple(sorted((*state.orders, order))))
        for order in state.orders:
            if order.is_open:
                others = list(state.orders)
                others.remove(order)
                filled = order._replace(is_open=False)
                yield "the venue fills the order", state._replace(orders=tuple(sorted((*others, filled))))

    def _recognises(self, order: VenueOrder, copy: Copy) -> bool:
        if order.generation != copy.generation:
            return False
        match self._assumptions.dedupe:
            case "permanent":
                return True
            case "ttl":
                return order.ticks < TTL_TICKS
            case "while_open":
                return order.is_open
            case "none":
                return False

    # People: backups, restores, verdicts

    def _people(self, state: State) -> Iterator[Step]:
        budget, record = state.budget, state.record
        if budget.restores and state.backup is None:
            kept = None if record is None else record._replace(own_attempt=False)
            yield "a backup is made", self._spent(state, "restores")._replace(backup=(kept, state.strays))
        if state.backup is not None and not state.is_alive:
            older, strays = state.backup
            yield "the backup is restored", state._replace(record=older, strays=strays, backup=None, history="older")
        if state.history == "older" and not state.is_alive:
            yield "db restored: the epoch is open", state._replace(history="restoring")
        if state.history == "restoring":
            doubtful = record
            if record is not None and record.row in ("queued", "failed", "sending") and not record.own_attempt:
                doubtful = self._decisions.doubted(record, "RESTORED")
            yield "db restored: the rows are in doubt", state._replace(record=doubtful, history="restored")
        if record is not None and record.row == "uncertain" and budget.verdicts:
            if not self._rules.evidence_wins:
                again = self._decisions.requeued(record, state.is_late)
                yield "an operator says: not sent", self._spent(state, "verdicts")._replace(record=again)
            elif self._assumptions.dedupe == "none":
                # A venue that can still be asked decides itself; here only a person can, and the order ends.
                ended = record._replace(status="CANCELED", row="dead", reason="NOT_SENT_BY_DECISION")
                yield "an operator says: not sent", self._spent(state, "verdicts")._replace(record=ended)

    # Time

    def _time(self, state: State) -> Iterator[Step]:
        copies = []
        for copy in state.copies:
            # A stopped venue reads nothing; a kernel repeats its retransmissions at ever longer intervals.
            stands_still = (copy.place == "input" and state.is_frozen) or copy.place == "orphaned"
            if stands_still or self._assumptions.path_stalls:
                copies.append(copy)
            elif copy.ticks >= STAY_TICKS_MAX:
                return  # it must move first
            else:
                copies.append(copy._replace(ticks=copy.ticks + 1))
        counts = state.is_alive and (state.is_reachable or not self._rules.answering_since)
        yield (
            "time passes",
            state._replace(
                copies=in_order(copies),
                orders=tuple(order._replace(ticks=min(order.ticks + 1, TTL_TICKS)) for order in state.orders),
                waited=min(state.waited + 1, PROOF_TICKS) if counts else state.waited,
                first_sent=None if state.first_sent is None else min(state.first_sent + 1, TTL_TICKS),
                is_late=state.record is not None,
            ),
        )

    @staticmethod
    def _spent(state: State, name: str) -> State:
        return state._replace(budget=state.budget._replace(**{name: getattr(state.budget, name) - 1}))
