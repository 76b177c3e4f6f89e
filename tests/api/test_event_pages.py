"""Every event of an account or an order can be reached page by page, in both directions: on both engines."""

from typing import Any

import pytest

from tests.support.gateway import RunningGateway

FAR: dict[str, Any] = {"type": "LIMIT", "price": 1}


async def pages(gateway: RunningGateway, path: str) -> list[list[dict[str, Any]]]:
    """Follow `nextCursor` from this path to the end."""
    found = []
    url: str | None = path
    while url is not None:
        answer = (await gateway.get(url)).json
        found.append(answer["events"])
        cursor = answer["nextCursor"]
        url = None if cursor is None else f"{path.split('cursor=')[0]}cursor={cursor}"
    return found


async def placed(gateway: RunningGateway, count: int) -> list[str]:
    ids = [(await gateway.place(**FAR)).json["orderId"] for _ in range(count)]
    for order_id in ids:
        await gateway.until_status(order_id, "WORKING")
    return ids


async def everything(gateway: RunningGateway, path: str = "/accounts/demo/events") -> list[dict[str, Any]]:
    answer = (await gateway.get(f"{path}?limit=1000")).json
    assert answer["nextCursor"] is None
    events: list[dict[str, Any]] = answer["events"]
    return events


async def test_the_newest_page_comes_first_and_the_cursor_reads_back_to_the_first_event(
    gateway: RunningGateway,
) -> None:
    await placed(gateway, 4)
    events = await everything(gateway)
    read = await pages(gateway, "/accounts/demo/events?limit=5&")
    assert read[0] == events[-5:]
    assert [event for page in reversed(read) for event in page] == events
    assert all(len(page) == 5 for page in read[:-1])


async def test_a_cursor_reads_on_from_any_event_as_a_client_does_after_resync_required(
    gateway: RunningGateway,
) -> None:
    await placed(gateway, 4)
    events = await everything(gateway)
    last_event_id = events[2]["seq"]
    read = await pages(gateway, f"/accounts/demo/events?limit=5&cursor=after:{last_event_id}")
    assert [event for page in read for event in page] == events[3:]


async def test_a_time_selects_before_the_limit_cuts(gateway: RunningGateway) -> None:
    await placed(gateway, 4)
    events = await everything(gateway)
    middle = events[4]["at"]
    since = [event for event in events if event["at"] >= middle]
    after = [event for event in events if event["at"] > middle]
    answer = (await gateway.get(f"/accounts/demo/events?since={middle}&limit=2")).json
    assert answer["events"] == since[:2]
    assert answer["nextCursor"] == f"after:{since[1]['seq']}"
    assert [e for page in await pages(gateway, f"/accounts/demo/events?since={middle}&limit=2&") for e in page] == since
    assert [e for page in await pages(gateway, f"/accounts/demo/events?after={middle}&limit=2&") for e in page] == after
    # Back from the end, and no further than the time.
    back = await pages(gateway, f"/accounts/demo/events?since={middle}&limit=3&cursor=before:999999999")
    assert [event for page in reversed(back) for event in page] == since


async def test_an_orders_events_are_paged_too(gateway: RunningGateway) -> None:
    first, *_ = await placed(gateway, 2)
    path = f"/orders/{first}/events"
    events = await everything(gateway, path)
    assert {event["orderId"] for event in events} == {first}
    assert [e for page in reversed(await pages(gateway, f"{path}?limit=1&")) for e in page] == events
    assert [e for page in await pages(gateway, f"{path}?limit=1&cursor=after:0") for e in page] == events
    assert (await gateway.get(f"{path}?cursor=before:0")).json == {"orderId": first, "events": [], "nextCursor": None}
    newest = f"after:{events[-1]['seq']}"
    assert (await gateway.get(f"{path}?cursor={newest}")).json == {"orderId": first, "events": [], "nextCursor": None}


async def test_a_malformed_cursor_is_named(gateway: RunningGateway) -> None:
    for cursor in ("7", "after:", "after:-1", "since:7", "after:1234567890123456789", "before:x"):
        answer = await gateway.get(f"/accounts/demo/events?cursor={cursor}")
        assert (answer.status, answer.json["field"]) == (422, "cursor"), cursor


GARBAGE = (
    "garbage",
    "7",
    "%00",
    "after:",
    "after:%00",
    "before:BTC",
    "ord_x",
    "ord_01JCQ8Z4M0W6T1V9K3X5R7N2BDX",
    "%F0%9F%A6%86",
)


@pytest.mark.parametrize(
    "path", ["/orders", "/positions", "/positions?flat=true", "/instruments", "/admin/kills", "/admin/kill/{kill}"]
)
async def test_a_cursor_that_no_page_gave_is_named_on_every_route(gateway: RunningGateway, path: str) -> None:
    token = gateway.token(scopes=["admin:kill"])
    headers = {"Authorization": f"Bearer {token}"}
    kill = await gateway.request(
        "POST", "/admin/kill?wait=0", headers=headers, body={"account": "x", "reason": "cursors"}
    )
    path = path.format(kill=kill.json["killId"])
    for cursor in GARBAGE:
        if path == "/admin/kills" and cursor == "7":
            continue  # a position that may exist
        separator = "&" if "?" in path else "?"
        answer = await gateway.request("GET", f"{path}{separator}cursor={cursor}", headers=headers)
        assert (answer.status, answer.json.get("field")) == (422, "cursor"), cursor
