"""The stages of a worker: send from the outbox, resolve doubt, and per venue synchronise, record reports and sweep."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

import msgspec
import structlog

from switchyard.bootstrap.capabilities import descriptor_of, is_remote, setting_of
from switchyard.bootstrap.core import DRAIN_SECONDS, Core
from switchyard.bootstrap.databases import lookup_decides
from switchyard.bootstrap.venues import clock_offset_of, open_rates, venue_id_forms
from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueClientOrderId, VenueName, WorkerId, tag_of
from switchyard.domain.journal.changes import Change, Cursor
from switchyard.domain.market.health import VenueSession
from switchyard.flow.executions.record import GapWatch, Recorder
from switchyard.flow.executions.strays import VenueGate
from switchyard.flow.executions.sync import StrayRecall, Sweeper, VenueSync
from switchyard.flow.health.copies import CopyWatch
from switchyard.flow.health.dead_mans_switch import DeadMansSwitch
from switchyard.flow.health.venues import HealthWriter, PauseKeeper, VenueBreaker
from switchyard.flow.history.restore import mark_read, restored_at, restored_seq, was_read
from switchyard.flow.kill.cancels import KillCancels
from switchyard.flow.lost_history import LostAmends, LostHistory
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.flow.sending.operator import Settling, class_text, declare
from switchyard.flow.sending.pre_send_checks import Closes, Collars
from switchyard.flow.sending.resolve import Resolver, VenueWatch, arrival_time, waiting_time
from switchyard.flow.sending.sends import SentIds
from switchyard.ports.clock import fresh_ulid
from switchyard.ports.venue import CancelAllAfter, HasClock, MassCancel, Venue
from switchyard.settings import VenueSettings

log = structlog.get_logger()

# How soon a worker that stands by takes the session of one that is gone: below the send deadline of an IOC order.
SESSION_SECONDS = 0.5


async def start_worker(core: Core, stack: AsyncExitStack) -> None:
    """Start sending to all open venues; on shutdown no new attempt starts, and attempts under way are drained."""
    await _check_id_forms(core)
    sent_ids = SentIds(
        journal=core.database.journal,
        queries=core.database.queries,
        metrics=core.metrics,
        trip=core.stop_everything,
    )
    await sent_ids.start()
    core.health.watch(map(partial(_breaker, core), core.settings.venues))
    core.health.watch_credentials(core.credentials)
    for name, credential in core.credentials.items():
        core.metrics.credential_paused.labels(name).set_function(partial(getattr, credential, "is_paused"))
    pauses = PauseKeeper(core.health, core.credentials, core.database.journal, core.sequencer.commit)
    await pauses.start()
    core.supervisor.start(stack, "venue pauses", pauses.run)
    copies: dict[VenueName, CopyWatch] = {}
    restored = await restored_at(core.database.journal)
    history = LostHistory(
        restored,
        _key_ttl(core),
        {name: venue.capabilities for name, venue in core.venues.items()},
        core.clock,
    )
    lost_keys = LostKeys(
        history,
        core.venues,
        partial(_venues_of, core),
        lambda venue: core.gates[venue].is_open,
        venue_id_forms(core.settings),
    )
    # No key is lost where the database was never restored: the dispatcher then asks about none.
    dispatcher = await _start_dispatcher(core, sent_ids, copies, None if restored is None else lost_keys, stack)
    core.window.start(dispatcher, core.settings.outbox_batch_size * core.settings.outbox_parallelism)
    cancels = KillCancels(
        kills=core.database.kills,
        active=core.kills,
        sequencer=core.sequencer,
        clock=core.clock,
        metrics=core.metrics,
        mass_cancels=partial(_mass_cancels, core),
        may_be_lost=history.may_have_sent,
    )
    core.supervisor.start(stack, "kill cancels", cancels.run)
    core.supervisor.start(stack, "sent ids", sent_ids.run)
    if core.settings.database_url is not None:  # otherwise no other process can read it
        writer = HealthWriter(
            core.health, core.settings.venue_names, core.sequencer.commit, core.clock, partial(_is_used, core)
        )
        core.supervisor.start(stack, "venue health", writer.run)
    amends = LostAmends(
        restored_seq=await restored_seq(core.database.journal),
        is_ours=partial(_is_ours, core),
        journal=core.database.journal,
        commit=core.sequencer.commit,
        clock=core.clock,
        venues_of=partial(_venues_of, core),
        may_be_amended=history.may_have_amended,
    )
    for venue in core.venues.values():
        _start_switch(core, venue, stack)
        core.gates[venue.name] = _gate(core, venue.name, dispatcher)
        copies[venue.name] = await _copy_watch(core, venue)
        start = partial(_start_venue, core, venue, copies[venue.name], amends, lost_keys)
        if venue.name in core.exclusive:
            hold = partial(_hold_session, core, venue.name, dispatcher, start)
            core.supervisor.start(stack, f"session {venue.name}", hold)
        else:
            await core.database.sessions.share(venue.name)
            start(stack)


def _start_venue(
    core: Core, venue: Venue, copies: CopyWatch, amends: LostAmends, lost_keys: LostKeys, stack: AsyncExitStack
) -> None:
    """Watch the venue, settle its doubts and record its reports, until the stack unwinds."""
    watch = _start_resolver(core, venue, copies, amends, lost_keys, stack)
    core.supervisor.start(stack, f"copies {venue.name}", copies.run)
    core.supervisor.start(stack, f"venue {venue.name}", partial(_follow, core, venue, watch, copies, amends))


async def _hold_session(
    core: Core, name: VenueName, dispatcher: Dispatcher, start: Callable[[AsyncExitStack], None]
) -> None:
    """Use a venue that admits one session for as long as this worker holds it; stand by otherwise.

    On shutdown the venue stays open until its sends are drained; closing the database releases the session.
    """
    sessions, gate, bridge = core.database.sessions, core.gates[name], core.exclusive[name]
    while True:
        if not await sessions.take(name, dispatcher.worker):
            gate.stand_by()
            await asyncio.sleep(SESSION_SECONDS)
            continue
        log.warning("venue_session_taken", venue=name, worker=dispatcher.worker)
        core.health.sessions[name] = VenueSession(worker=dispatcher.worker, since=core.clock.now())
        gate.begin()
        await bridge.start()
        async with AsyncExitStack() as stages:
            start(stages)
            await sessions.lost(name)
            # First of all nothing more leaves: another worker may hold the session by now.
            dispatcher.leave_venue(name)
            del core.health.sessions[name]
            await bridge.close()
            gate.stand_by()
            log.error("venue_session_lost", venue=name, worker=dispatcher.worker)
        await sessions.release(name)


def _is_used(core: Core, venue: VenueName) -> bool:
    return venue not in core.exclusive or venue in core.health.sessions


def _start_switch(core: Core, venue: Venue, stack: AsyncExitStack) -> None:
    """Keep the venue's dead man's switch set, if the settings ask for it."""
    settings = _settings_of(core, venue)
    if settings.cancel_all_after is None:
        return
    assert isinstance(venue, CancelAllAfter), "the adapter declares it"
    switch = DeadMansSwitch(venue, settings.cancel_all_after, clock=core.clock, metrics=core.metrics)
    core.health.switches[venue.name] = switch
    if settings.disarm_on_stop:
        stack.push_async_callback(_disarm, core, switch)  # after the renewals have ended, while the venue is open
    core.supervisor.start(stack, f"switch {venue.name}", switch.run)


async def _disarm(core: Core, switch: DeadMansSwitch) -> None:
    if core.supervisor.failure is None:  # a process that ends by an error leaves its orders to the venue
        await switch.disarm()


async def _check_id_forms(core: Core) -> None:
    """Raise SettingError if orders of a venue were sent with client order ids of another form than its adapter has now.

    They would not be found any more, and one in doubt would be sent again under its id in the new form.
    """
    for settings in core.settings.venues:
        if not is_remote(settings):
            continue
        form = msgspec.json.encode(descriptor_of(settings).id_form).decode()
        cursor = Cursor(name=f"id_form:{settings.name}", epoch=0, seq=0, hash=form)
        stored = await core.database.journal.cursor(cursor.name)
        if stored is None:
            await core.sequencer.commit(Change(cursors=(cursor,)))
        elif stored.hash != form:
            raise SettingError(
                setting_of("URL", settings),
                f"client order ids of {settings.name} have another form in this database than {settings.kind} takes: "
                "its orders would not be found. Use this kind under a new name in SOR_VENUES",
            )


def _is_ours(core: Core, client_id: VenueClientOrderId) -> bool:
    return tag_of(client_id) == core.installation.tag


def _venues_of(core: Core, symbol: str) -> Sequence[VenueName]:
    return core.router.venues_of(symbol)


def _breaker(core: Core, venue: VenueSettings) -> VenueBreaker:
    return VenueBreaker(
        venue.name,
        faults_max=venue.breaker_faults,
        pause=venue.breaker_pause,
        clock=core.clock,
        metrics=core.metrics,
    )


def _mass_cancels(core: Core) -> dict[VenueName, MassCancel]:
    return {
        name: venue
        for name, venue in core.venues.items()
        if isinstance(venue, MassCancel)
        and venue.capabilities.cancel_all
        and _is_used(core, name)
        # A venue that only lends its quotes to a paper exchange has no orders of ours.
        and core.router.is_routed(name)
    }


def _key_ttl(core: Core) -> timedelta:
    return max(core.settings.idempotency_ttl, core.settings.do_key_ttl)


async def _copy_watch(core: Core, venue: Venue) -> CopyWatch:
    restored = await restored_at(core.database.journal)
    watch = CopyWatch(
        venue.name,
        journal=core.database.journal,
        commit=core.sequencer.commit,
        clock=core.clock,
        metrics=core.metrics,
        lock=core.gates[venue.name].lock,
        clock_offset=partial(clock_offset_of, venue) if isinstance(venue, HasClock) else None,
        explained_until=None if restored is None else restored + _key_ttl(core),
    )
    await watch.look()
    return watch


def _start_resolver(
    core: Core, venue: Venue, copies: CopyWatch, amends: LostAmends, lost_keys: LostKeys, stack: AsyncExitStack
) -> VenueWatch:
    """Watch whether the venue answers, and settle its doubts; each venue alone, so that none waits for another."""
    watch = VenueWatch(venue, clock=core.clock, metrics=core.metrics, breaker=core.health.breaker(venue.name))
    resolver = Resolver(
        watch,
        journal=core.database.journal,
        queries=core.database.queries,
        liveness=core.database.liveness,
        commit=core.sequencer.commit,
        clock=core.clock,
        metrics=core.metrics,
        note_found=copies.note_found,
        amends=amends,
        lost_keys=lost_keys,
    )
    core.supervisor.start(stack, f"watch {venue.name}", watch.run)
    core.supervisor.start(stack, f"resolve {venue.name}", resolver.run)
    return watch


async def _start_dispatcher(
    core: Core,
    sent_ids: SentIds,
    copies: Mapping[VenueName, CopyWatch],
    lost_keys: LostKeys | None,
    stack: AsyncExitStack,
) -> Dispatcher:
    settings, database = core.settings, core.database
    worker = WorkerId("wrk_" + fresh_ulid(core.clock, core.randomness))
    declared = {name: class_text(venue.capabilities) for name, venue in core.venues.items()}
    lanes = core.lanes = HeldLanes(database.lanes, worker, core.clock, declared)
    await lanes.join(database.liveness)
    dispatcher = Dispatcher(
        worker=worker,
        sequencer=core.sequencer,
        queries=database.queries,
        liveness=database.liveness,
        lanes=lanes,
        venues=core.venues,
        clock=core.clock,
        randomness=core.randomness,
        metrics=core.metrics,
        batch_size=settings.outbox_batch_size,
        parallelism=settings.outbox_parallelism,
        retry_max=settings.outbox_retry_max,
        wait_max=settings.unsent_wait,
        idle_seconds=settings.outbox_idle_sleep_ms / 1000,
        stuck_after=settings.outbox_stuck_after,
        kills=core.kills,
        was_read=partial(was_read, database.journal),
        lost_keys=lost_keys,
        waiting=core.waiting,
        sent_ids=sent_ids,
        guard=Closes(Collars(core.catalogue, core.quotes), database.journal),
        health=core.health,
        choice=core.choice,
        rates=open_rates(core, stack),
        inline_reports=core.inline_reports,
        note_answer=lambda order, row, answer: copies[row.venue].note_answer(order, row, answer),
        tracer=core.tracer,
    )
    core.health.on_change = core.wakes.dispatch.notify
    stack.push_async_callback(dispatcher.drain, DRAIN_SECONDS)
    core.supervisor.start(stack, "lanes", lanes.run)
    core.supervisor.start(stack, "dispatch", lambda: dispatcher.run(core.wakes.dispatch))
    return dispatcher


def _gate(core: Core, venue: VenueName, dispatcher: Dispatcher) -> VenueGate:
    def open_venue() -> None:
        dispatcher.open_venue(venue, any_lane=venue in core.exclusive)
        core.wakes.dispatch.notify()

    return VenueGate(
        venue,
        clock=core.clock,
        metrics=core.metrics,
        on_open=open_venue,
        on_close=partial(dispatcher.close_venue, venue),
        breaker=core.health.breaker(venue),
        paused=partial(core.health.pause_of, venue),
    )


async def _follow(core: Core, venue: Venue, watch: VenueWatch, copies: CopyWatch, amends: LostAmends) -> None:
    """Record what happened at the venue while no worker ran, open it for sending, then record its reports."""
    gate = core.gates[venue.name]
    decides = lookup_decides(core.settings, venue.name)
    wait = waiting_time(venue.capabilities, core.database.liveness.send_lingers)
    settling = Settling(
        lookup=venue.capabilities.lookup,
        absent_after_seconds=None if wait is None else wait.total_seconds(),
        sequence_proof=venue.capabilities.sequence_proof,
    )
    await declare(core.database.journal, core.sequencer.commit, venue.name, settling, lookup_decides=decides)
    await _await_lost_requests(core, venue, watch, gate)
    recorder = Recorder(
        venue,
        journal=core.database.journal,
        queries=core.database.queries,
        sequencer=core.sequencer,
        clock=core.clock,
        metrics=core.metrics,
        gate=gate,
        is_ours=partial(_is_ours, core),
        trading_day=core.settings.risk.stateful.trading_day,
        copies=copies,
        amends=amends,
    )
    sync = VenueSync(venue, recorder, journal=core.database.journal, clock=core.clock, metrics=core.metrics, gate=gate)
    await sync.run()
    await mark_read(core.database.journal, core.sequencer.commit, venue.name)
    core.inline_reports[venue.name] = recorder.inline
    async with AsyncExitStack() as stack:
        _start_sweeper(core, venue, recorder, stack)
        recall = StrayRecall(venue, recorder, queries=core.database.queries)
        core.supervisor.start(stack, f"strays {venue.name}", recall.run)
        await recorder.run()


async def _await_lost_requests(core: Core, venue: Venue, watch: VenueWatch, gate: VenueGate) -> None:
    """After a restore, wait until no request of the lost history can arrive any more.

    One that arrives after the venue was read is no stray, so a repeated key would be sent as well.
    """
    # A venue in this process ended together with its sender.
    if not is_remote(_settings_of(core, venue)) or await was_read(core.database.journal, venue.name):
        return
    seconds = arrival_time(venue.capabilities, core.database.liveness.send_lingers).total_seconds()
    gate.note_not_synced(f"after a restore, it must have been answering for {seconds:.0f} s first")
    log.warning("venue_waits_after_restore", venue=venue.name, seconds=seconds)
    await watch.answered_for(seconds)


def _settings_of(core: Core, venue: Venue) -> VenueSettings:
    [settings] = [settings for settings in core.settings.venues if settings.name == venue.name]
    return settings


def _start_sweeper(core: Core, venue: Venue, recorder: Recorder, stack: AsyncExitStack) -> None:
    """Look for executions that the venue did not report; where it cannot be asked, only raise an alarm for gaps."""
    interval = _settings_of(core, venue).sweep
    if not interval or venue.capabilities.lookup == "none":
        watch = GapWatch(venue.name, recorder, clock=core.clock, metrics=core.metrics)
        core.supervisor.start(stack, f"gaps {venue.name}", watch.run)
        return
    sweeper = Sweeper(
        venue,
        recorder,
        journal=core.database.journal,
        queries=core.database.queries,
        commit=core.sequencer.commit,
        clock=core.clock,
        metrics=core.metrics,
        interval=interval,
    )
    core.supervisor.start(stack, f"sweep {venue.name}", sweeper.run)
