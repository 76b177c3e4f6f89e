"""Identifiers: ULIDs for orders, derived client order ids for venues, the installation and its tag."""

import hashlib
from functools import lru_cache
from typing import NewType

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
    """The form of client order ids that a venue takes."""

    length_max: int = 32
    is_uuid: bool = False


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


def amend_client_order_id(tag: str, order: VenueClientOrderId, operation: str, key: str) -> VenueClientOrderId:
    """The client order id of an amend: 32 characters with the installation's tag, the same after a restore."""
    digest = hashlib.sha256(_BORDER.join(("amend", order, operation, key)).encode()).hexdigest()
    return VenueClientOrderId(tag + digest[: _DIGEST_LENGTH + _GENERATION_LENGTH])


def venue_client_order_id(
    tag: str, account: AccountId, operation: str, key: str | None, generation: int, order: OrderId
) -> VenueClientOrderId:
    """The client order id at the venue: 32 characters, the same after a retry, a restart and a restore.

    It begins with the installation's tag and ends with the generation, so that the orders of one key can be recognised
    as such. Without an idempotency key it is derived from the order's own id.
    """
    intent = ("order", order) if key is None else ("key", account, operation, key)
    digest = hashlib.sha256(_BORDER.join(intent).encode()).hexdigest()
    return VenueClientOrderId(tag + digest[:_DIGEST_LENGTH] + _GENERATION % generation)
