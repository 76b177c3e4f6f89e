"""What each configured venue guarantees: what its adapter declares, and what settings have weakened."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NoReturn

from msgspec.structs import replace

from switchyard.adapters.venues.http.adapter import DESCRIPTOR
from switchyard.domain.errors import SettingError
from switchyard.domain.orders.order import ALL_KINDS, OrderKinds
from switchyard.ports.venue import Capabilities
from switchyard.settings import VenueSettings
from switchyard.settings.table import VENUE_SETTINGS
from switchyard.venue.interface import Descriptor
from switchyard.venue.kinds import installed_kinds, load_kind


def setting_of(name: str, settings: VenueSettings) -> str:
    """The name of a setting of the venue."""
    return f"VENUE_{name}_{settings.name.upper()}"


def reuses_connections(settings: VenueSettings) -> bool:
    """Whether orders may follow each other on a connection to the venue (ADR 43)."""
    return declared_capabilities(settings).dedupe == "permanent" and settings.reuse_connections is not False


_IN_PROCESS: Final = Capabilities(dedupe="permanent", lookup="all", acceptance_window=timedelta(), amend="in_place")
_LOCAL: Final[Mapping[str, Descriptor]] = {
    # Their acceptance window is zero because they are in this process: a send has ended with its process.
    "null": Descriptor(
        kind="null", title="A venue without a market, for benchmarks", capabilities=_IN_PROCESS, in_process=True
    ),
    "paper": Descriptor(
        kind="paper",
        title="The paper exchange in this process",
        capabilities=replace(_IN_PROCESS, kinds=ALL_KINDS),
        in_process=True,
    ),
    "http": DESCRIPTOR,
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


def is_remote(settings: VenueSettings) -> bool:
    """Whether the venue is outside of this process."""
    return not descriptor_of(settings).in_process


def declared_capabilities(settings: VenueSettings) -> Capabilities:
    """What the venue guarantees: what its adapter declares, as settings have weakened it.

    Of a protocol, such as our own over HTTP, the operator states the broker's rules in the settings.
    """
    descriptor = descriptor_of(settings)
    if descriptor.in_process:
        return descriptor.capabilities
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
        execution_ids=settings.exec_id_scope,
        amend=settings.amend,
        kinds=OrderKinds(types=settings.order_types, times_in_force=settings.times_in_force),
    )
    return stated if descriptor.states_rules else _weakened(descriptor, stated, settings)


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
