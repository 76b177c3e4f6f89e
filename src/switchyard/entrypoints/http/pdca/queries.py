"""The query parameters of pages, filters and orders."""

from collections.abc import Mapping
from typing import NamedTuple, get_args

from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId
from switchyard.domain.strategies.registry import HEALTHS, Health, Tenants, check_tags, tenant_of_account
from switchyard.domain.strategies.requests import Filter
from switchyard.domain.values import is_account
from switchyard.entrypoints.http.queries import whole_number
from switchyard.ports.strategies import SortField, StrategyQuery

PAGE_SIZE_DEFAULT = 50
PAGE_SIZES = (10, 100)
# Far beyond the last page of the largest registry, and within every integer.
PAGE_LIMIT = 1_000_000
TEXT_LENGTH_MAX = 64
SORT_FIELDS: tuple[SortField, ...] = get_args(SortField)
LIST_PARAMETERS = ("account", "health", "tags_any", "q", "sort", "page", "page_size")
PAGE_PARAMETERS = ("page", "page_size")


class Page(NamedTuple):
    """Which page is asked for."""

    number: int
    size: int

    @property
    def offset(self) -> int:
        """How many entries are before it."""
        return (self.number - 1) * self.size


def page_of(query: Mapping[str, str]) -> Page:
    """`page` and `page_size`."""
    return Page(
        whole_number(query, "page", 1, 1, PAGE_LIMIT),
        whole_number(query, "page_size", PAGE_SIZE_DEFAULT, *PAGE_SIZES),
    )


def narrowed(tenants: Tenants, query: Mapping[str, str]) -> Tenants:
    """Those of the tenants that the request is about: all, or the one of `account`; one of others looks missing."""
    if "account" not in query:
        return tenants
    if not is_account(query["account"]):
        raise InvalidField("account", "must be an account id")
    named = frozenset({tenant_of_account(AccountId(query["account"]))})
    return named if tenants is None else tenants & named


def strategy_query(query: Mapping[str, str], page: Page, tenants: Tenants) -> StrategyQuery:
    """The filters and the order of a list of strategies."""
    sort, descending = _sort_of(query.get("sort", "id.asc"))
    return StrategyQuery(
        tenants=narrowed(tenants, query),
        filter=Filter(tags_any=_tags_of(query), health=_healths_of(query)),
        text=_text_of(query),
        sort=sort,
        descending=descending,
        offset=page.offset,
        limit=page.size,
    )


def _sort_of(text: str) -> tuple[SortField, bool]:
    name, _, direction = text.partition(".")
    for field in SORT_FIELDS:
        if name == field and direction in ("asc", "desc"):
            return field, direction == "desc"
    raise InvalidField("sort", f"must be field.asc or field.desc, with one of {', '.join(SORT_FIELDS)}")


def _tags_of(query: Mapping[str, str]) -> tuple[str, ...]:
    tags = tuple(query["tags_any"].split(",")) if "tags_any" in query else ()
    check_tags("tags_any", tags)
    return tags


def _healths_of(query: Mapping[str, str]) -> tuple[Health, ...]:
    words = query["health"].split(",") if "health" in query else []
    found = [health for word in words for health in HEALTHS if health == word]
    if len(found) != len(words) or len(set(found)) != len(found):
        raise InvalidField("health", f"must be words of {', '.join(HEALTHS)}, separated by commas, each once")
    return tuple(found)


def _text_of(query: Mapping[str, str]) -> str:
    text = query.get("q", "")
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidField("q", f"at most {TEXT_LENGTH_MAX} characters, got {len(text)}")
    if not text.isprintable():
        raise InvalidField("q", "must consist of printable characters")
    return text
