"""`venues`: the state of the configured venues, the kinds that can be opened, and what an adapter declares."""

import asyncio
import signal
from collections.abc import Collection
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from switchyard.domain.errors import InvalidField, SettingError
from switchyard.domain.ids import (
    AccountId,
    IdForm,
    OrderId,
    VenueClientOrderId,
    carries,
    from_venue,
    narrowed,
    tag_of,
    to_venue,
    venue_client_order_id,
)
from switchyard.domain.market.health import VenueState
from switchyard.domain.values import plain, positive_amount
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import DEFAULT_ACCOUNT, AccountOption, JsonOption, UrlOption, asked
from switchyard.entrypoints.cli.market import cell
from switchyard.entrypoints.cli.trading import amount
from switchyard.ports.venue import Capabilities
from switchyard.telemetry.logs import without_credentials
from switchyard.venue.interface import Descriptor

if TYPE_CHECKING:
    from rich.table import Table

    from switchyard.settings import VenueSettings
    from switchyard.venue.check import Allowed, Finding, VenueCheck

app = typer.Typer(
    help="Show every venue: whether orders are sent to it, why not, and how it answers; and what venues can be opened.",
    invoke_without_command=True,
)
KindArgument = Annotated[str, typer.Argument(metavar="KIND", help="As in VENUE_URL_<VENUE>: http, paper, …")]


IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A client order id, of ours or of the venue.")]
EXAMPLE_ID = venue_client_order_id("abcd", AccountId("example"), "orders", "key", 0, OrderId(""))


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="venues")


@app.callback()
def venues(
    context: typer.Context,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Show every venue: whether orders are sent to it, why not, and how it answers; and what venues can be opened."""
    if context.invoked_subcommand is not None:
        return
    from switchyard.entrypoints.http.transport.auth import HEALTH_SCOPE

    found = asked(url, account, lambda client: client.venues(), scopes=(HEALTH_SCOPE,))
    if as_json:
        output.print_json(found)
        return
    console = output.console()
    console.print(venue_table(found))
    for each in found:
        for line in (each.reason, switch_words(each), _session_words(each)):
            if line is not None:
                console.print(f"{each.venue}: {line}", markup=False, highlight=False)


def _session_words(found: VenueState) -> str | None:
    """Who holds the session of a venue that admits one."""
    if found.session is None:
        return None
    return f"worker {found.session.worker} holds its session since {found.session.since:%Y-%m-%d %H:%M:%S} UTC"


@app.command("list")
def list_kinds(as_json: JsonOption = False) -> None:
    """List the kinds of venues that can be opened here: those of Switchyard, and those of installed adapters."""
    from switchyard.bootstrap.capabilities import known_kinds

    known = known_kinds()
    if as_json:
        output.print_json({kind: {"title": _title(found), "source": source} for kind, (found, source) in known.items()})
        return
    rows = [(kind, source, _title(found)) for kind, (found, source) in known.items()]
    output.console().print(output.table(("Kind", "From", "Title"), rows))


@app.command()
def describe(kind: KindArgument, as_json: JsonOption = False) -> None:
    """Describe a kind of venue: what it guarantees, what follows for an order in doubt, and the sources."""
    from switchyard.bootstrap.capabilities import offered_parts

    descriptor, source = _descriptor(kind)
    parts = offered_parts(kind)
    if as_json:
        output.print_json(msgspec.structs.asdict(descriptor) | {"codes": dict(descriptor.codes), "parts": parts})
        return
    console = output.console()
    for line in [*described(descriptor, source, parts), *_tried(kind)]:
        console.print(line, markup=False, highlight=False)


def _descriptor(kind: str) -> tuple[Descriptor, str]:
    """The descriptor of an installed kind, and its distribution; raises SettingError."""
    from switchyard.bootstrap.capabilities import known_kinds

    known = known_kinds()
    if kind not in known:
        raise SettingError("KIND", f"{kind!r} is not installed; known: {', '.join(known)}")
    descriptor, source = known[kind]
    if isinstance(descriptor, SettingError):
        raise descriptor
    return descriptor, source


@app.command("id")
def translate(kind: KindArgument, client_id: IdArgument) -> None:
    """Print a client order id of ours as the venue shows it; or, of one that the venue shows, ours."""
    descriptor = _descriptor(kind)[0]
    ours = VenueClientOrderId(client_id)
    if tag_of(ours) is None:
        shown: str = from_venue(client_id, descriptor.id_form)
    elif not carries(descriptor.id_form, ours):
        raise SettingError("ID", f"{kind} has no room for {client_id}: it was made for another venue")
    else:
        shown = to_venue(ours, descriptor.id_form)
    typer.echo(shown)


def _tried(kind: str) -> list[str]:
    """What `venues check` has found at venues of this kind, on this machine."""
    from switchyard.bootstrap.capabilities import checks_of
    from switchyard.settings import load_settings

    try:
        found = checks_of(load_settings().data_dir, kind)
    except SettingError as error:
        return ["", f"What was tried with `venues check` is not shown: {error}"]
    lines = []
    for each in found:
        lines += ["", f"Tried live as {each.venue} at {each.address} on {each.at:%Y-%m-%d}, with {each.source}:"]
        lines += [f"- {one.claim}: {one.verdict}: {one.text}" for one in each.findings]
    return lines


@app.command()
def check(
    venue: Annotated[str, typer.Argument(metavar="VENUE", help="The venue's name in SOR_VENUES.")],
    symbol: Annotated[str, typer.Option("--symbol", help="What to buy, by our name.")],
    qty: Annotated[
        Decimal,
        typer.Option(
            "--qty", parser=amount, metavar="QTY", help="What each order buys: the least that the venue takes."
        ),
    ],
    resting: Annotated[
        Decimal,
        typer.Option("--resting", parser=amount, metavar="PRICE", help="Far below the market, so that an order rests."),
    ],
    marketable: Annotated[
        Decimal | None,
        typer.Option("--marketable", parser=amount, metavar="PRICE", help="Above the market: two orders are filled."),
    ] = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the first order.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Try at a venue what its adapter declares, with a few small orders: at its test system, and before you trade.

    It says first how many orders it sends, and sends no other ones. Orders that rest are canceled. What it has found
    is kept in the data folder, and `venues describe` shows it. The exit code is 1 if a claim is broken.
    """
    from switchyard.settings import load_settings
    from switchyard.venue.check import Allowed

    settings = load_settings()
    known = {str(each.name): each for each in settings.venues}
    if venue not in known:
        raise SettingError("VENUE", f"{venue!r} is not in SOR_VENUES; there are: {', '.join(known)}")
    for name, value in (("--qty", qty), ("--resting", resting), ("--marketable", marketable)):
        try:
            _ = None if value is None else positive_amount(value, name)
        except InvalidField as error:
            raise typer.BadParameter(str(error), param_hint=name) from None
    if marketable is not None and marketable <= resting:
        raise typer.BadParameter("must be above the resting price", param_hint="--marketable")
    allowed = Allowed(account=AccountId(account), symbol=symbol, qty=qty, resting=resting, marketable=marketable)
    asyncio.run(_check(known[venue], allowed, settings.data_dir, yes=yes, as_json=as_json))


async def _check(settings: "VenueSettings", allowed: "Allowed", folder: Path, *, yes: bool, as_json: bool) -> None:
    from switchyard.adapters.system_clock import SystemClock, random_installation
    from switchyard.bootstrap.capabilities import checked, is_remote, keep_checked
    from switchyard.bootstrap.venues import remote_venue
    from switchyard.venue.check import VenueCheck

    if not is_remote(settings):
        raise SettingError("VENUE", f"{settings.name} is a part of this process: there is nothing to try")
    clock = SystemClock()
    venue = remote_venue(settings, clock)
    await venue.start()
    try:
        trial = VenueCheck(venue, allowed, tag=random_installation().tag, clock=clock, sleep=asyncio.sleep)
        if not yes:
            _ask(settings, allowed, trial)
        # So that also a process that is told to end cancels what is open.
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        findings = await _run(trial, as_json=as_json)
    finally:
        await venue.close()
    found = checked(settings, clock.now(), findings)
    path = keep_checked(folder, found)
    if as_json:
        output.print_json(found)
    else:
        typer.echo(f"\nWritten to {path}; `switchyard venues describe {settings.kind}` shows it.")
    if any(each.verdict == "broken" for each in findings):
        raise typer.Exit(1)


def _ask(settings: "VenueSettings", allowed: "Allowed", trial: "VenueCheck") -> None:
    lines = [f"This sends at most these orders to {without_credentials(settings.url)}; at worst, all are executed:"]
    for price, count in trial.plan():
        lines.append(f"- {count} to buy {plain(allowed.qty)} {allowed.symbol} at {plain(price)}")
    typer.echo("\n".join(lines), err=True)
    typer.confirm("Send them?", abort=True, err=True)


async def _run(trial: "VenueCheck", *, as_json: bool) -> "list[Finding]":
    findings = []
    try:
        async for finding in trial.run():
            findings.append(finding)
            _say(finding, as_json=as_json)
    finally:
        left = await trial.clean_up()
        if left is not None:
            findings.append(left)
            _say(left, as_json=as_json)
    return findings


def _say(finding: "Finding", *, as_json: bool) -> None:
    if not as_json:
        typer.echo(f"{finding.verdict:<10} {finding.claim}: {finding.text}", err=finding.claim == "cleaning up")


@app.command("interface")
def show_interface() -> None:
    """Print the reference of the interface for authors of adapters, as Markdown."""
    from switchyard.entrypoints.cli.venue_interface import interface_page

    typer.echo(interface_page(), nl=False)


def _title(found: Descriptor | SettingError) -> str:
    return f"cannot be opened: {found}" if isinstance(found, SettingError) else found.title


def described(descriptor: Descriptor, source: str, parts: Collection[str] | None = None) -> list[str]:
    """The descriptor in words; `parts` are the optional methods of the adapter, None if they are not known."""
    lines = [f"{descriptor.kind}: {descriptor.title} (from {source})", ""]
    if descriptor.states_rules:
        lines += [
            "A protocol, not a venue: it guarantees nothing by itself. The operator states the broker's rules in "
            "settings such as VENUE_DEDUPE_, VENUE_LOOKUP_ and VENUE_WINDOW_SEC_. If none held, this would follow:",
            "",
        ]
    lines += [f"- {sentence}" for sentence in (*_guarantees(descriptor.capabilities), _ids(descriptor.id_form))]
    lines += ["", "An order whose send had an unclear outcome:", f"- {_doubt(descriptor)}"]
    lines += ["", "Optional parts:", *(f"- {sentence}" for sentence in _parts(parts))]
    for title, is_secret, setting in (("Options", False, "VENUE_OPTIONS_"), ("Secrets", True, "VENUE_SECRETS_")):
        options = [option for option in descriptor.options if option.is_secret == is_secret]
        if options:
            lines += ["", f"{title} ({setting}<VENUE>):"]
        for option in options:
            notes = [
                *(["required"] if option.is_required else []),
                *([f"one of {', '.join(option.choices)}"] if option.choices else []),
                *([f"default {option.default}"] if option.default else []),
            ]
            note = f" ({'; '.join(notes)})" if notes else ""
            lines.append(f"- {option.name}{note}: {option.text}")
    if descriptor.codes:
        lines += ["", "Codes that decide; every other answer than an acceptance is doubt:"]
        lines += [f"- {code}: {meaning.replace('_', ' ')}" for code, meaning in sorted(descriptor.codes.items())]
    if descriptor.sources:
        lines += ["", "Sources:"]
    for each in descriptor.sources:
        lines.append(f"- {each.claim}: {each.source} ({each.evidence}, {each.read_on:%Y-%m-%d})")
    return lines


def _guarantees(found: Capabilities) -> list[str]:
    dedupe = {
        "permanent": "A client order id is never executed twice.",
        "ttl": f"A client order id is not executed twice within {_time(found.dedupe_ttl)}.",
        "while_open": "A client order id is not executed twice while its first order is open.",
        "none": "A repeated client order id is executed again.",
    }
    lookup = {
        "all": "Orders are found by client order id, closed ones too.",
        "open": "Only open orders are found by client order id.",
        "none": "Orders cannot be found by client order id.",
    }
    window = found.acceptance_window
    sentences = [dedupe[found.dedupe], lookup[found.lookup]]
    if found.lookup_keeps is not None:
        sentences.append(
            f"An order that has ended is found for {_time(found.lookup_keeps)} after its first send; later, 'absent' "
            "proves nothing."
        )
    if window is None:
        sentences.append("It is not documented how long after a send an order may still appear.")
    else:
        sentences.append(f"An order appears within {_time(window)} after a send, or never.")
    if found.request_expiry:
        sentences.append("A request that arrives after that time is rejected by the venue itself.")
    if found.sessions == "exclusive":
        sentences.append("It admits one session: one worker at a time uses it, and the others stand by.")
    if found.sequence_proof:
        sentences.append("The venue can prove that it never received a message, which settles a doubt at once.")
    amend = {
        "in_place": "An open order is amended in place.",
        "cancel_replace": "An amend ends the order and puts a new one in its place.",
        "none": "Orders cannot be amended.",
    }
    sentences.append(amend[found.amend])
    sentences.append(f"Execution ids are unique per {found.execution_ids}.")
    kinds = f"{', '.join(sorted(found.kinds.types))}; {', '.join(sorted(found.kinds.times_in_force))}"
    sentences.append(f"Orders: {kinds}.")
    members = {"postOnly": found.post_only, "reduceOnly": found.reduce_only, "displayQty": found.display_qty}
    taken, rejected = ([name for name, has in members.items() if has is wanted] for wanted in (True, False))
    if taken:
        sentences.append(f"Orders may have {', '.join(taken)}.")
    if rejected:
        sentences.append(f"Orders with {', '.join(rejected)} are rejected.")
    if found.reduce_only:
        sentences.append("Orders that close a position are sent as reduce-only.")
    if found.cancel_all:
        sentences.append("All open orders can be cancelled with one request.")
    if found.cancel_all_after:
        sentences.append(
            "It has a dead man's switch: it cancels all open orders unless the time is renewed "
            "(VENUE_CANCEL_ALL_AFTER_<VENUE>)."
        )
    if found.cancel_on_disconnect:
        sentences.append(
            "It cancels open orders when a connection ends, also when Switchyard restarts; its reports end them here. "
            "That must be accepted with VENUE_ACCEPT_CANCEL_ON_DISCONNECT_<VENUE>."
        )
    return sentences


def _ids(form: IdForm) -> str:
    """The form of its client order ids, with an example."""
    example = to_venue(narrowed(EXAMPLE_ID, form), form)
    if form.is_uuid:
        return f"Client order ids are UUIDs, such as {example}."
    return f"Client order ids have at most {form.length_max} characters, such as {example}."


def _parts(offered: Collection[str] | None) -> list[str]:
    """What the adapter can be asked for besides orders and reports."""
    if offered is None:
        return ["They show only when an adapter is built: `build` does not say which class it makes."]
    words = {
        "quotes": ("quotes", "no quotes: market orders cannot be checked against its market"),
        "statement": ("statement: the books can be compared with the venue", "no statement to compare the books with"),
        "cancel_all": ("cancel_all: a kill of everything is one request", "no cancel_all: a kill cancels one by one"),
        "cancel_all_after": ("cancel_all_after: a dead man's switch", "no cancel_all_after: no dead man's switch"),
    }
    return [has if name in offered else has_not for name, (has, has_not) in words.items()]


def switch_words(found: VenueState) -> str | None:
    """The state of the venue's dead man's switch, if it is asked for."""
    if found.cancel_all_after_sec is None:
        return None
    states = {"set": "it is set", "not_set": "it is NOT set, see the log of the worker", None: "not reported lately"}
    state = states[found.cancel_all_after]
    return f"cancels all open orders {found.cancel_all_after_sec} s after the last renewal: {state}"


def _doubt(descriptor: Descriptor) -> str:
    found = descriptor.capabilities
    if descriptor.in_process:
        return "cannot outlive this process: after a restart the venue itself has the answer."
    if found.dedupe == "permanent":
        return "is sent again under the same id, which the venue recognises."
    if found.proves_absence:
        return "is looked up, and sent again only once the venue has shown that it can no longer arrive."
    if found.lookup != "none":
        return "is looked up; if the venue does not show it, it is never sent again: a report or a person decides."
    return "is never sent again: a report or a person decides."


def _time(found: timedelta | None) -> str:
    return "an unknown time" if found is None else f"{found.total_seconds():g} s"


def venue_table(found: list[VenueState]) -> "Table":
    """A table of venues."""
    figures = ("Faults", "Rate/s", "Latency", "Rejects")
    rows = (
        (
            *(each.venue, each.kind, each.state, (each.breaker or "-").replace("_", " ")),
            cell(each.faults),
            cell(each.rate_per_sec),
            "-" if each.latency_ms is None else f"{each.latency_ms:.1f} ms",
            "-" if each.reject_rate is None else f"{each.reject_rate:.0%}",
        )
        for each in found
    )
    return output.table(("Venue", "Kind", "State", "Breaker", *figures), rows, right=figures)
