"""Operations on the requests on their way, which are kept in order so that equal states compare as equal."""

from collections.abc import Iterable

from tests.model.state import Copy, Place


def in_order(copies: Iterable[Copy]) -> tuple[Copy, ...]:
    """The copies in their canonical order."""
    return tuple(sorted(copies))


def added(copies: tuple[Copy, ...], copy: Copy) -> tuple[Copy, ...]:
    """The copies with one more."""
    return in_order((*copies, copy))


def without(copies: tuple[Copy, ...], copy: Copy) -> tuple[Copy, ...]:
    """The copies without one of them."""
    place = copies.index(copy)
    return copies[:place] + copies[place + 1 :]


def moved(copies: tuple[Copy, ...], copy: Copy, to: Place) -> tuple[Copy, ...]:
    """The copies after one of them moved to another place."""
    return added(without(copies, copy), copy._replace(place=to, ticks=0))
