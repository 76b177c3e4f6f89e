"""What each configured venue guarantees: what its adapter declares, and what settings have weakened."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from switchyard.adapters.files.durable import make_folder, replace_file
from switchyard.adapters.venues.http.adapter import DESCRIPTOR, HttpProtocol
from switchyard.domain.errors import SettingError
from switchyard.domain.orders.order import ALL_KINDS, OrderKinds
from switchyard.ports.venue import Capabilities
from switchyard.settings import VenueSettings
from switchyard.settings.table import VENUE_SETTINGS
from switchyard.venue.check import Finding
from switchyard.venue.interface import Descriptor
from switchyard.venue.kinds import adapter_class, address_of, installed_kinds, load_kind, parts_of


def setting_of(name: str, settings: VenueSettings) -> str:
    """The name of a setting of the venue."""
    return f"VENUE_{name}_{settings.name.upper()}"


def reuses_connections(settings: VenueSettings) -> bool:
    """Whether orders may follow each other on a connection to the venue (ADR 43)."""
    return settings.reuse_connections and declared_capabilities(settings).dedupe == "permanent"


_IN_PROCESS: Final = Capabilities(dedupe="permanent", lookup="all", acceptance_window=timedelta(), amend="in_place")
_LOCAL: Final[Mapping[str, Descriptor]] = {
    # Their acceptance window is zero because they are in this process: a send has ended with its process.
    "null": Descriptor(
        kind="null", title="A venue without a market, for benchmarks", capabilities=_IN_PROCESS, in_process=True
    ),
    "paper": Descriptor(
        kind="paper",
        title="The paper exchange in this process",
        capabilities=replace(_IN_PROCESS, kinds=ALL_KINDS, post_only=True),
        in_process=True,
    ),
    "http": DESCRIPTOR,
}
_LOCAL_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "null": ("quotes",),
    "paper": ("quotes", "statement"),
    "http": parts_of(HttpProtocol),
}


def descriptor_of(settings: VenueSettings) -> Descriptor:
    """What is known about the venue's kind; raises SettingError for a kind that is not installed."""
    return _LOCAL.get(settings.kind) or load_kind(settings.kind, setting_of("URL", settings)).descriptor


def known_kinds() -> dict[str, tuple[Descriptor | SettingError, str]]:
    """Every installed kind, or why it cannot be opened, with the distribution that it comes from."""
    known: dict[str, tuple[Descriptor | SettingError, str]] = {
        kind: (descriptor, "switchyard") for kind, descriptor in sorted(_LOCAL.items())
    }
    for name, point in sorted(installed_kinds().items()):
        source = "unknown" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        try:
            known[name] = (load_kind(name, name).descriptor, source)
        except SettingError as error:  # one adapter that cannot be loaded must not hide the others
            known[name] = (error, source)
    return known


def offered_parts(kind: str) -> tuple[str, ...] | None:
    """The optional parts of an installed kind; None if they show only when an adapter is built."""
    if kind in _LOCAL_PARTS:
        return _LOCAL_PARTS[kind]
    adapter = adapter_class(load_kind(kind, kind))
    return None if adapter is None else parts_of(adapter)


def is_remote(settings: VenueSettings) -> bool:
    """Whether the venue is outside of this process."""
    return not descriptor_of(settings).in_process


def declared_capabilities(settings: VenueSettings) -> Capabilities:
    """What the venue guarantees: what its adapter declares, as settings have weakened it.

    Of a protocol, such as our own over HTTP, the operator states the broker's rules in the settings.
    """
    descriptor = descriptor_of(settings)
    _check_asked(descriptor, settings)
    if descriptor.in_process:
        return descriptor.capabilities
    _check_used(settings)
    stated = Capabilities(
        dedupe=settings.dedupe,
        dedupe_ttl=settings.dedupe_ttl if settings.dedupe == "ttl" else None,
        lookup=settings.lookup,
        acceptance_window=settings.window,
        lookup_keeps=settings.lookup_keeps,
        hop_hold=settings.hop_hold,
        request_expiry=settings.request_expiry,
        sequence_proof=settings.sequence_proof,
        sessions=settings.sessions,
        cancel_all=settings.cancel_all,
        reduce_only=settings.reduce_only,
        post_only=settings.post_only,
        display_qty=settings.display_qty,
        execution_ids=settings.exec_id_scope,
        amend=settings.amend,
        kinds=OrderKinds(types=settings.order_types, times_in_force=settings.times_in_force),
    )
    return stated if descriptor.states_rules else _weakened(descriptor, stated, settings)


# Settings that only some kinds use.
_ONLY_PROTOCOL: Final = frozenset({"token", "token_header", "final_errors", "idempotency_header"})
_ONLY_ADAPTERS: Final = frozenset({"options", "secrets"})
_ONLY_PAPER: Final = frozenset({"delay", "partial_steps", "reject_all", "displayed_qty"})


def _check_used(settings: VenueSettings) -> None:
    """Raise SettingError for a setting that the venue's kind would ignore: its operator relies on it.

    A venue in this process has no credential: those of the broker that it stands in for may stay.
    """
    for each in VENUE_SETTINGS:
        if each.field not in settings.stated:
            continue
        name, kind = each.name + settings.name.upper(), settings.kind
        if each.field in _ONLY_PROTOCOL and kind != "http":
            hint = f"{kind} has keys in VENUE_SECRETS_ and codes of its own"
            raise SettingError(name, f"is used only by brokers that speak our HTTP protocol; {hint}")
        if each.field in _ONLY_ADAPTERS and kind == "http":
            raise SettingError(name, "is used only by installed adapters; the token of an http venue is VENUE_TOKEN_")
        if each.field in _ONLY_PAPER:
            raise SettingError(name, f"is used only by the paper exchange, not by {kind}")


def _check_asked(descriptor: Descriptor, settings: VenueSettings) -> None:
    """Raise SettingError if the settings ask for a switch that the venue lacks, or do not accept what it does."""
    declared = descriptor.capabilities
    if settings.cancel_all_after is not None and not declared.cancel_all_after:
        raise SettingError(
            setting_of("CANCEL_ALL_AFTER", settings),
            f"the adapter of {settings.kind} declares no `cancel_all_after`, so the venue would not cancel anything: "
            "remove the setting",
        )
    if settings.disarm_on_stop and settings.cancel_all_after is None:
        raise SettingError(
            setting_of("DISARM_ON_STOP", settings),
            f"there is nothing to switch off without {setting_of('CANCEL_ALL_AFTER', settings)}",
        )
    if declared.cancel_on_disconnect and not settings.accept_cancel_on_disconnect:
        raise SettingError(
            setting_of("ACCEPT_CANCEL_ON_DISCONNECT", settings),
            f"{settings.kind} cancels open orders when a connection ends, so also at each restart and network fault: "
            "set it to true to accept that",
        )


# From the weakest to the strongest.
_STRENGTHS: Final[Mapping[str, Sequence[object]]] = {
    "dedupe": ("none", "while_open", "ttl", "permanent"),
    "lookup": ("none", "open", "all"),
    "exec_id_scope": ("order", "symbol", "venue"),
    "request_expiry": (False, True),
    "sequence_proof": (False, True),
    "sessions": ("exclusive", "shared"),
    "cancel_all": (False, True),
    "reduce_only": (False, True),
    "post_only": (False, True),
    "display_qty": (False, True),
}
_FIELD: Final = {"exec_id_scope": "execution_ids"}


def _weakened(descriptor: Descriptor, stated: Capabilities, settings: VenueSettings) -> Capabilities:
    """The descriptor's capabilities with those that the settings give; raises SettingError if one promises more."""
    declared = descriptor.capabilities
    changes: dict[str, object] = {}
    for setting, strengths in _STRENGTHS.items():
        field = _FIELD.get(setting, setting)
        if setting in settings.stated:
            ours, theirs = getattr(stated, field), getattr(declared, field)
            if strengths.index(ours) > strengths.index(theirs):
                _promises_more(setting, settings, theirs)
            changes[field] = ours
    if changes.get("dedupe", declared.dedupe) == "ttl":
        longest = declared.dedupe_ttl  # None: the venue deduplicates permanently
        ttl = settings.dedupe_ttl if longest is None or "dedupe_ttl" in settings.stated else longest
        if longest is not None and ttl > longest:
            _promises_more("dedupe_ttl", settings, f"{longest.total_seconds():g} seconds")
        changes["dedupe_ttl"] = ttl
    if "amend" in settings.stated:
        if stated.amend not in ("none", declared.amend):
            _promises_more("amend", settings, declared.amend)
        changes["amend"] = stated.amend
    if "window" in settings.stated:
        window = declared.acceptance_window
        if stated.acceptance_window is not None and (window is None or stated.acceptance_window < window):
            _promises_more("window", settings, "none" if window is None else f"{window.total_seconds():g} seconds")
        changes["acceptance_window"] = stated.acceptance_window
    if "lookup_keeps" in settings.stated:
        keeps = declared.lookup_keeps
        if keeps is not None and (stated.lookup_keeps is None or stated.lookup_keeps > keeps):
            _promises_more("lookup_keeps", settings, f"{keeps.total_seconds():g} seconds")
        changes["lookup_keeps"] = stated.lookup_keeps
    kinds = declared.kinds
    for setting, ours, theirs in (
        ("order_types", stated.kinds.types, kinds.types),
        ("times_in_force", stated.kinds.times_in_force, kinds.times_in_force),
    ):
        if setting in settings.stated:
            if not ours <= theirs:
                _promises_more(setting, settings, ", ".join(sorted(theirs)))
            kinds = replace(kinds, **{"types" if setting == "order_types" else setting: ours})
    return replace(declared, **changes, kinds=kinds, hop_hold=max(declared.hop_hold, stated.hop_hold))


def _promises_more(setting: str, settings: VenueSettings, declared: object) -> NoReturn:
    [name] = [each.name for each in VENUE_SETTINGS if each.field == setting]
    raise SettingError(
        name + settings.name.upper(),
        f"promises more than the adapter of {settings.kind} declares ({declared}); settings may only weaken it",
    )


# What `venues check` has found.


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A check of one venue: it raises what its descriptor says from read to tried, on this machine."""

    venue: str
    kind: str
    source: str
    """The distribution that the adapter comes from, with its version."""
    address: str
    at: datetime
    findings: tuple[Finding, ...]


def checked(settings: VenueSettings, at: datetime, findings: Sequence[Finding]) -> Checked:
    """The findings with what they are about; of the address, nothing that may be a credential."""
    descriptor, source = known_kinds()[settings.kind]
    assert isinstance(descriptor, Descriptor), "it was opened"
    address = urlsplit(address_of(settings.url) or descriptor.default_url)
    return Checked(
        venue=settings.name,
        kind=settings.kind,
        source=source,
        address=f"{address.scheme}://{address.netloc.rpartition('@')[2]}",
        at=at,
        findings=tuple(findings),
    )


def keep_checked(data_dir: Path, found: Checked) -> Path:
    """Write the findings where `checks_of` finds them; a new check of the venue replaces the last one."""
    path = data_dir / "venues" / f"{found.venue}.check.json"
    make_folder(path.parent)
    replace_file(path, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    return path


def checks_of(data_dir: Path, kind: str) -> list[Checked]:
    """What was found at venues of this kind; raises SettingError for a file that cannot be read."""
    found = []
    for path in sorted((data_dir / "venues").glob("*.check.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Checked))
        except (OSError, msgspec.MsgspecError) as error:
            raise SettingError("SWITCHYARD_DATA_DIR", f"{path} cannot be read: {error}") from None
    return [each for each in found if each.kind == kind]
