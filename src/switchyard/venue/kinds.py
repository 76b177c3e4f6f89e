"""The kinds of venues: those of this package and those that other distributions bring as entry points.

A distribution names a `Kind` in the entry point group `switchyard.venues`; then `VENUE_URL_<VENUE>=<kind>:<address>`
opens it.
"""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, get_args, get_type_hints

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import DIGEST_DIGITS_MIN, IdForm, VenueName, digest_digits
from switchyard.ports.venue import Capabilities
from switchyard.venue.interface import (
    Adapter,
    CancelsAfter,
    CancelsAll,
    Descriptor,
    HasQuotes,
    HasStatement,
    Meaning,
)

GROUP: Final = "switchyard.venues"
# The longest client order id that any known venue takes; the core itself needs 32 characters at most.
ID_LENGTH_MAX: Final = 128
_KIND: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter is built from: checked against its descriptor."""

    venue: VenueName
    url: str
    """The venue's address: that of the setting, or the descriptor's default."""
    capabilities: Capabilities
    """Those of the descriptor, as the settings have weakened them."""
    options: Mapping[str, str]
    """Every option of the descriptor that is no secret, with its default if it is not set."""
    secret: Callable[[str], str]
    """The present value of a secret by its name: ask for it each time, because keys change while the adapter runs."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of venue: what is known about it, and how an adapter is built."""

    descriptor: Descriptor
    build: Callable[[Configuration], Adapter]
    """Makes one adapter for one venue under one set of credentials; it must not do any I/O."""


def scheme_of(url: str) -> str:
    """The kind that a venue's URL names; `http` for the URL of a broker that speaks our own protocol."""
    scheme = url.partition(":")[0]
    return "http" if scheme == "https" else scheme


def address_of(url: str) -> str:
    """The address behind the kind; of a broker that speaks our own protocol the whole URL."""
    return url if scheme_of(url) == "http" else url.partition(":")[2]


def installed_kinds() -> dict[str, EntryPoint]:
    """The entry points of other distributions by kind; raises SettingError if two bring the same one."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise SettingError(
                "VENUE_URL_", f"two distributions bring the kind {point.name}: {other.value}, {point.value}"
            )
        found[point.name] = point
    return found


def load_kind(name: str, setting: str) -> Kind:
    """Load a kind of another distribution; raises SettingError that names the setting."""
    points = installed_kinds()
    if name not in points:
        known = ", ".join(sorted({"paper", "http", *points}))
        raise SettingError(
            setting, f"{name!r} is no kind of venue here; installed: {known} (see `switchyard venues list`)"
        )
    try:
        kind = points[name].load()
    except Exception as error:
        raise SettingError(setting, f"the adapter of {name} cannot be loaded: {error!r}") from error
    if not isinstance(kind, Kind) or kind.descriptor.kind != name:
        raise SettingError(setting, f"the entry point {name} of {points[name].value} is no Kind of that name")
    check_descriptor(kind.descriptor, setting)
    adapter = adapter_class(kind)
    if adapter is not None:
        check_parts(kind.descriptor, adapter, setting)
    return kind


# The parts that an adapter may leave out, by the names of their methods.
_PARTS: Final[Mapping[str, Any]] = {
    "quotes": HasQuotes,
    "statement": HasStatement,
    "cancel_all": CancelsAll,
    "cancel_all_after": CancelsAfter,
}
# Those that are used only if the descriptor declares them.
_DECLARED_PARTS: Final = ("cancel_all", "cancel_all_after")


def adapter_class(kind: Kind) -> type | None:
    """The class of the kind's adapters; None if `build` is a function that does not say which one it makes."""
    if isinstance(kind.build, type):
        return kind.build
    try:
        made = get_type_hints(kind.build).get("return")
    except Exception:  # an annotation that cannot be evaluated here
        return None
    return made if isinstance(made, type) and made is not Adapter else None


def parts_of(adapter: type) -> tuple[str, ...]:
    """The optional parts that the class of an adapter has."""
    return tuple(name for name, part in _PARTS.items() if issubclass(adapter, part))


def check_parts(descriptor: Descriptor, adapter: type, setting: str) -> None:
    """Raise SettingError for a part that is declared and missing, or that would never be used."""
    offered = parts_of(adapter)
    for name in _DECLARED_PARTS:
        is_declared = getattr(descriptor.capabilities, name)
        if is_declared and name not in offered:
            raise SettingError(
                setting, f"the descriptor of {descriptor.kind} declares `{name}`, and its adapter has no such method"
            )
        # Of a protocol, a setting declares what the broker behind it has.
        if name in offered and not is_declared and not descriptor.states_rules:
            raise SettingError(
                setting,
                f"the adapter of {descriptor.kind} has the method `{name}`, which would never be used: declare it in "
                "the descriptor, or remove it",
            )


def check_descriptor(descriptor: Descriptor, setting: str) -> None:
    """Raise SettingError for a descriptor that contradicts itself."""
    capabilities = descriptor.capabilities
    problem = None
    if not _KIND.fullmatch(descriptor.kind):
        problem = "its kind must be letters, digits and -"
    elif descriptor.in_process:
        problem = "an adapter of another distribution is not a part of this process: its venue is outside"
    elif capabilities.dedupe == "ttl" and capabilities.dedupe_ttl is None:
        problem = "the deduplication `ttl` needs `dedupe_ttl`"
    elif capabilities.request_expiry and capabilities.acceptance_window is None:
        problem = "`request_expiry` needs an acceptance window"
    elif _keeps_too_short(capabilities):
        problem = "`lookup_keeps` must be longer than the acceptance window, or no lookup ever proves anything"
    elif capabilities.amend == "cancel_replace" and capabilities.execution_ids == "order":
        problem = "`cancel_replace` needs execution ids that are unique at least within a symbol"
    elif form_problem := _form_problem(descriptor.id_form):
        problem = f"its `id_form` {form_problem}"
    elif unknown := sorted({str(meaning) for meaning in descriptor.codes.values()} - set(get_args(Meaning))):
        problem = f"{unknown[0]!r} is no meaning of a code; allowed: {', '.join(get_args(Meaning))}"
    elif "429" in descriptor.codes and descriptor.codes["429"] not in ("throttled", "busy"):
        problem = "429 is never final"
    if problem is not None:
        raise SettingError(setting, f"the descriptor of {descriptor.kind}: {problem}")


def _keeps_too_short(capabilities: Capabilities) -> bool:
    keeps, window = capabilities.lookup_keeps, capabilities.acceptance_window
    return keeps is not None and keeps <= (window or timedelta())


def _form_problem(form: IdForm) -> str | None:
    """Why client order ids cannot have this form; None if they can."""
    if form.is_uuid:
        return None
    characters = form.alphabet + form.prefix
    if not form.alphabet or not characters.isascii() or not characters.isprintable() or " " in characters:
        return "needs an alphabet and a prefix of printable ASCII characters, without spaces"
    if not form.length_max <= ID_LENGTH_MAX:
        return f"is longer than {ID_LENGTH_MAX} characters"
    if set(form.alphabet) <= set("0123456789") and form.prefix[:1] in ("", "0"):
        return "has digits only, and a venue may drop leading zeros: give it a prefix such as 1"
    if digest_digits(form) < DIGEST_DIGITS_MIN:
        return (
            f"has no room for the {4 * DIGEST_DIGITS_MIN} bits of an order's digest, next to the installation's tag "
            "and a generation: allow more characters, or a larger alphabet"
        )
    return None


DEDUPE_ORDER: Final = ("none", "while_open", "ttl", "permanent")
LOOKUP_ORDER: Final = ("none", "open", "all")
