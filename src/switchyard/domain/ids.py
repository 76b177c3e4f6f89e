"""Identifiers: ULIDs for orders, derived client order ids and their forms at venues, the installation and its tag.

Inside, a client order id always has 32 characters: tag, digest and generation. A venue that takes shorter or other
texts is sent the same id in its own form (`to_venue`), and its answers are read back (`from_venue`). Such an id is
*narrowed* when it is made: the digits of its digest that the form has no room for are zeros. So both ways are exact.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple, NewType

import msgspec

OrderId = NewType("OrderId", str)
AccountId = NewType("AccountId", str)
# The client order id (ClOrdID) that a venue sees; never the caller's own clientOrderId.
VenueClientOrderId = NewType("VenueClientOrderId", str)
VenueName = NewType("VenueName", str)
WorkerId = NewType("WorkerId", str)
KillId = NewType("KillId", str)

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Two characters per ten bits: one shift and one lookup instead of two of each.
_PAIRS = [a + b for a in _CROCKFORD for b in _CROCKFORD]
ULID_RANDOM_BITS = 80
_RANDOM_SHIFTS = range(ULID_RANDOM_BITS - 10, -1, -10)
# Base32 in lower case: every venue accepts these characters in a client order id.
_TAG_CHARACTERS = "abcdefghijklmnopqrstuvwxyz234567"
TAG_LENGTH = 4
_HEX = "0123456789abcdef"
TAG_BITS = 5 * TAG_LENGTH
# Digest and generation have 28 characters, with the tag 32: the longest client order id that common venues accept.
_GENERATION_LENGTH = 5
_GENERATION = f"%0{_GENERATION_LENGTH}x"
_DIGEST_LENGTH = 23
# The characters that all generations of an idempotency key share.
_INTENT_LENGTH = TAG_LENGTH + _DIGEST_LENGTH
# Separates the parts. Accounts and keys have visible characters only, so no other split gives the same text.
_BORDER = "\x1f"


def ulid(milliseconds: int, random_bits: int) -> str:
    """26 characters that sort by time; the caller passes the time and the random bits."""
    pairs = _PAIRS
    return _time_text(milliseconds) + "".join([pairs[(random_bits >> shift) & 1023] for shift in _RANDOM_SHIFTS])


@lru_cache(maxsize=1)  # hundreds of ids may be made in one millisecond
def _time_text(milliseconds: int) -> str:
    return "".join([_PAIRS[(milliseconds >> shift) & 1023] for shift in range(40, -1, -10)])


def ulid_milliseconds(text: str) -> int:
    """The time in a ULID."""
    milliseconds = 0
    for character in text[:10]:
        milliseconds = milliseconds * 32 + _CROCKFORD.index(character)
    return milliseconds


def order_id(milliseconds: int, random_bits: int) -> OrderId:
    """A new order id."""
    return OrderId("ord_" + ulid(milliseconds, random_bits))


def kill_id(ulid_text: str) -> KillId:
    """The id of a new kill, from a fresh ULID."""
    return KillId("kill_" + ulid_text)


class IdForm(msgspec.Struct, frozen=True):
    """The form of client order ids that a venue takes: a text, or a UUID."""

    length_max: int = 32
    """Of a text, with the prefix."""
    alphabet: str = "abcdefghijklmnopqrstuvwxyz0123456789"
    """The characters of a text behind its prefix; of a venue that ignores case, those of one case only."""
    prefix: str = ""
    """What each text must begin with."""
    is_uuid: bool = False
    """A random UUID (version 4) in lower case, with hyphens; the other members do not count then."""


# Of most venues: it carries every id whole.
WHOLE: Final = IdForm()
# With 48 bits, two of 2 million keys have equal digests with a probability of 1 %; the second one then begins with its
# next generation, as a key does that is used again.
DIGEST_DIGITS_MIN: Final = 12
_ID_LENGTH: Final = 32
_UUID_DIGEST_DIGITS: Final = 20
_UUID_VERSION, _UUID_VARIANT = "4", "8"
_UUID_GROUPS: Final = (8, 12, 16, 20)


class _Layout(NamedTuple):
    """How a form carries an id."""

    digits: int
    """How many digits of the digest it has room for."""
    is_plain: bool = False
    """Whether the whole id follows the prefix."""
    has_tag: bool = False
    """Whether the tag follows the prefix as it is; otherwise it is a part of the number."""
    alphabet: str = ""
    """The digits of the number, in the order of their characters, so that texts have the order of their ids."""
    width: int = 0
    """How many characters the number has."""


@lru_cache(maxsize=64)
def _layout(form: IdForm) -> _Layout:
    if form.is_uuid:
        return _Layout(_UUID_DIGEST_DIGITS)
    alphabet = "".join(sorted(set(form.alphabet)))
    room = form.length_max - len(form.prefix)
    if room >= _ID_LENGTH and set(_TAG_CHARACTERS + _HEX) <= set(alphabet):
        return _Layout(_DIGEST_LENGTH, is_plain=True)
    has_tag = set(_TAG_CHARACTERS) <= set(alphabet)
    room -= TAG_LENGTH * has_tag
    other_bits = TAG_BITS * (not has_tag) + 4 * _GENERATION_LENGTH
    values = len(alphabet) ** max(room, 0)
    digits = min((values.bit_length() - 1 - other_bits) // 4, _DIGEST_LENGTH)
    width = 0
    while digits > 0 and len(alphabet) ** width < 1 << (other_bits + 4 * digits):
        width += 1
    return _Layout(digits, has_tag=has_tag, alphabet=alphabet, width=width)


def digest_digits(form: IdForm) -> int:
    """How many hexadecimal digits of an id's digest the form has room for; a negative number is a form too short."""
    return _layout(form).digits


def narrowest(forms: Iterable[IdForm]) -> IdForm:
    """The form with the least room: an id that is narrowed to it can be carried by each of them."""
    return min(forms, key=digest_digits, default=WHOLE)


def narrowed(client_id: VenueClientOrderId, form: IdForm) -> VenueClientOrderId:
    """The id with zeros for the digits of its digest that the form has no room for; all generations of a key agree."""
    digits = _DIGEST_LENGTH if form is WHOLE else _layout(form).digits
    if digits >= _DIGEST_LENGTH or tag_of(client_id) is None:
        return client_id
    kept = TAG_LENGTH + digits
    return VenueClientOrderId(client_id[:kept] + "0" * (_INTENT_LENGTH - kept) + client_id[_INTENT_LENGTH:])


def carries(form: IdForm, client_id: VenueClientOrderId) -> bool:
    """Whether the form carries the id exactly."""
    return narrowed(client_id, form) == client_id


def to_venue(client_id: VenueClientOrderId, form: IdForm) -> str:
    """The id in the venue's form; an id of another system is left as it is. The form must carry the id (`carries`)."""
    layout = _layout(form)
    if (layout.is_plain and not form.prefix) or tag_of(client_id) is None:
        return client_id  # most venues
    assert carries(form, client_id), f"the form has no room for {client_id}"
    if layout.is_plain:
        return form.prefix + client_id
    tag, generation = client_id[:TAG_LENGTH], client_id[_INTENT_LENGTH:]
    digest = client_id[TAG_LENGTH : TAG_LENGTH + layout.digits]
    if form.is_uuid:
        digits = f"{_tag_number(tag):05x}{digest}{generation}"
        # The version is the 13th digit of a UUID, the variant the 17th.
        digits = digits[:12] + _UUID_VERSION + digits[12:15] + _UUID_VARIANT + digits[15:]
        first, second, third, fourth = _UUID_GROUPS
        return "-".join(
            (digits[:first], digits[first:second], digits[second:third], digits[third:fourth], digits[fourth:])
        )
    number = int(digest + generation, 16)
    if not layout.has_tag:
        number |= _tag_number(tag) << 4 * (layout.digits + _GENERATION_LENGTH)
    return form.prefix + (tag if layout.has_tag else "") + _in_base(number, layout)


def from_venue(text: str, form: IdForm) -> VenueClientOrderId:
    """The id that a text of the venue stands for; a text that does not have our form there is left as it is."""
    layout = _layout(form)
    if layout.is_plain:
        is_ours = bool(form.prefix) and text.startswith(form.prefix)
        inner = VenueClientOrderId(text[len(form.prefix) :])
        return inner if is_ours and tag_of(inner) is not None else VenueClientOrderId(text)
    found = _from_uuid(text) if form.is_uuid else _from_text(text, form, layout)
    if found is None:
        return VenueClientOrderId(text)
    tag, digits = found
    digest, generation = digits[: layout.digits], digits[layout.digits :]
    return VenueClientOrderId(tag + digest.ljust(_DIGEST_LENGTH, "0") + generation)


def _from_uuid(text: str) -> tuple[str, str] | None:
    digits = text.replace("-", "")
    if len(digits) != _ID_LENGTH or not set(digits) <= set(_HEX) or digits[12] + digits[16] != "48":
        return None
    if [at for at, character in enumerate(text) if character == "-"] != [8, 13, 18, 23]:
        return None
    digits = digits[:12] + digits[13:16] + digits[17:]
    return _tag_text(int(digits[:5], 16)), digits[5:]


def _from_text(text: str, form: IdForm, layout: _Layout) -> tuple[str, str] | None:
    behind = len(form.prefix) + TAG_LENGTH * layout.has_tag
    tag, digits = text[len(form.prefix) : behind], text[behind:]
    if not text.startswith(form.prefix) or len(digits) != layout.width or not set(digits) <= set(layout.alphabet):
        return None
    number = 0
    for character in digits:
        number = number * len(layout.alphabet) + layout.alphabet.index(character)
    bits = 4 * (layout.digits + _GENERATION_LENGTH)
    high, low = number >> bits, number & (1 << bits) - 1
    if high >> TAG_BITS * (not layout.has_tag) or not set(tag) <= set(_TAG_CHARACTERS):
        return None
    return tag if layout.has_tag else _tag_text(high), f"{low:0{layout.digits + _GENERATION_LENGTH}x}"


def _in_base(number: int, layout: _Layout) -> str:
    characters = []
    for _ in range(layout.width):
        number, digit = divmod(number, len(layout.alphabet))
        characters.append(layout.alphabet[digit])
    return "".join(reversed(characters))


def _tag_number(tag: str) -> int:
    number = 0
    for character in tag:
        number = number << 5 | _TAG_CHARACTERS.index(character)
    return number


def _tag_text(number: int) -> str:
    return "".join([_TAG_CHARACTERS[number >> shift & 31] for shift in range(TAG_BITS - 5, -1, -5)])


class Installation(msgspec.Struct, frozen=True):
    """The identity of a database, made with its schema; a restored or rebuilt database keeps it."""

    id: str
    """A ULID: names the installation's head file outside the data folder."""
    tag: str
    """The first characters of all its client order ids, by which its orders are recognised at a venue."""


def new_installation(milliseconds: int, ulid_bits: int, tag_bits: int) -> Installation:
    """A new installation; the caller passes the time and the random bits."""
    tag = "".join([_TAG_CHARACTERS[(tag_bits >> shift) & 31] for shift in range(0, TAG_BITS, 5)])
    return Installation(ulid(milliseconds, ulid_bits), tag)


def tag_of(client_id: VenueClientOrderId) -> str | None:
    """The tag that a client order id begins with; none if it does not have our form."""
    tag, number = client_id[:TAG_LENGTH], client_id[TAG_LENGTH:]
    is_long_enough = len(number) == _DIGEST_LENGTH + _GENERATION_LENGTH
    if not is_long_enough or not set(tag) <= set(_TAG_CHARACTERS) or not set(number) <= set(_HEX):
        return None
    return tag


def last_generation(client_id: VenueClientOrderId) -> VenueClientOrderId:
    """The highest id of the same key: ids from the given one to this one belong to the same or a later generation."""
    return VenueClientOrderId(client_id[:_INTENT_LENGTH] + "f" * _GENERATION_LENGTH)


def other_generations(client_id: VenueClientOrderId, count: int) -> list[VenueClientOrderId]:
    """The ids of the key's next generations; with a negative count, of those before. None for an id of another form."""
    if tag_of(client_id) is None:
        return []
    number = int(client_id[_INTENT_LENGTH:], 16)
    numbers = range(number + 1, number + 1 + count) if count > 0 else range(max(number + count, 0), number)
    return [VenueClientOrderId(client_id[:_INTENT_LENGTH] + _GENERATION % one) for one in numbers]


def amend_client_order_id(
    tag: str, order: VenueClientOrderId, operation: str, key: str, form: IdForm = WHOLE
) -> VenueClientOrderId:
    """The client order id of an amend: 32 characters with the installation's tag, the same after a restore.

    It is narrowed to the form.
    """
    digest = hashlib.sha256(_BORDER.join(("amend", order, operation, key)).encode()).hexdigest()
    return narrowed(VenueClientOrderId(tag + digest[: _DIGEST_LENGTH + _GENERATION_LENGTH]), form)


def venue_client_order_id(
    tag: str,
    account: AccountId,
    operation: str,
    key: str | None,
    generation: int,
    order: OrderId,
    form: IdForm = WHOLE,
) -> VenueClientOrderId:
    """The client order id at the venue: 32 characters, the same after a retry, a restart and a restore.

    It begins with the installation's tag and ends with the generation, so that the orders of one key can be recognised
    as such. Without an idempotency key it is derived from the order's own id. It is narrowed to the form.
    """
    intent = ("order", order) if key is None else ("key", account, operation, key)
    digest = hashlib.sha256(_BORDER.join(intent).encode()).hexdigest()
    client_id = VenueClientOrderId(tag + digest[:_DIGEST_LENGTH] + _GENERATION % generation)
    return client_id if form is WHOLE else narrowed(client_id, form)


def generation_of(client_id: VenueClientOrderId) -> int:
    """The generation of an id of ours."""
    return int(client_id[_INTENT_LENGTH:], 16)
