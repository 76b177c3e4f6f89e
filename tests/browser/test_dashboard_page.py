"""The dashboard in a real browser; `make test-browser` runs it, because it needs Debian's package `chromium`."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp

from switchyard.adapters.system_clock import SystemClock
from switchyard.entrypoints.http.transport.auth import issue_token
from tests.support.books import KEEPS_BOOKS
from tests.support.browser import Tab, opened_tab
from tests.support.cluster import Cluster
from tests.support.polling import until
from tests.support.process import SECRET, Process

HOSTILE = "<img src=/nowhere onerror=\"document.title='run'\"><script>document.title='run'</script>"


async def place(process: Process, **changes: Any) -> str:
    body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000, **changes}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{process.url}/orders", json=body, headers=process.headers()) as response,
    ):
        assert response.status == 202, await response.text()
        return str((await response.json())["orderId"])


async def booked_position(process: Process, qty: int) -> str:
    """The text of the account's positions, as soon as the books have this quantity."""
    text = ""
    async with aiohttp.ClientSession(headers=process.headers()) as session:

        async def is_booked() -> bool:
            nonlocal text
            async with session.get(f"{process.backoffice_url}/positions") as response:
                text = await response.text()
            return f'"qty":{qty},' in text

        await until(is_booked, lambda: text)
    return text


async def paste(tab: Tab, token: str) -> None:
    await tab.run(f"document.getElementById('tokens-text').value = {json.dumps(token)}")
    await tab.click("#tokens-form button[type=submit]")


def token_of(process: Process, **options: Any) -> str:
    return process.headers(**options)["Authorization"].removeprefix("Bearer ")


async def test_hostile_texts_stay_texts_and_money_keeps_its_digits(cluster: Cluster, tmp_path: Path) -> None:
    process = await cluster.process(**KEEPS_BOOKS).start()
    for qty in (1000, 1000, 1000):
        await place(process, qty=qty)
    order_id = await place(
        process, type="LIMIT", price=100.125, clientOrderId=HOSTILE, tags=[HOSTILE], timeInForce="GTC"
    )
    position = await booked_position(process, qty=3000)
    async with opened_tab(tmp_path, process.url) as tab:
        token = token_of(process)
        await paste(tab, token)
        await tab.until("document.querySelectorAll('#orders-table tbody tr').length === 4")
        await tab.until("document.getElementById('live').innerText === 'Live'")
        await tab.click(f"[data-key='{order_id}']")
        await tab.until("document.querySelector('#detail-body dl')?.textContent.includes('Tags')")
        assert HOSTILE in "".join(await tab.texts("#orders-table td"))
        assert "".join(await tab.texts("#detail-body")).count(HOSTILE) >= 2
        assert await tab.run("document.querySelectorAll('img').length + document.scripts.length") == 1
        assert await tab.run("document.title") == "Switchyard"

        names = ("qty", "averagePrice", "costBasis", "realisedPnl")
        sent = [re.findall(rf'"{name}":([^,}}]+)', position)[0] for name in names]
        await tab.until("document.querySelectorAll('#positions tbody td').length > 0")
        assert await tab.texts("#positions tbody td.number") == sent

        assert tab.complaints == []
        assert {request["url"].startswith((process.url, "data:")) for request in tab.requests} == {True}
        assert [request["url"] for request in tab.requests if token[-20:] in request["url"]] == []


async def test_a_lost_connection_is_shown_and_the_stream_continues_where_it_was(
    cluster: Cluster, tmp_path: Path
) -> None:
    process = await cluster.process(**KEEPS_BOOKS).start()
    first = await place(process)
    async with opened_tab(tmp_path, f"{process.url}/dashboard") as tab:
        await paste(tab, token_of(process))
        await tab.until(f"document.querySelector(\"[data-key='{first}']\")")
        await tab.until("document.getElementById('live').innerText === 'Live'")
        second = await place(process)
        await tab.until(f"document.querySelector(\"[data-key='{second}']\")")
        process.kill()
        await tab.until("document.getElementById('live').innerText.startsWith('Connection lost at')")
        await tab.until("document.getElementById('system-state').innerText.startsWith('Not updated since')")
        await tab.until("document.getElementById('orders-state').innerText.startsWith('Not updated since')")
        style = "getComputedStyle(document.querySelector('#tiles .tile[data-level=good] .badge'), '::before').content"
        assert await tab.run(style) == '"? "'  # what was good is not known now
        assert len(await tab.texts("#orders-table tbody tr")) == 2  # what is known is still shown
        await process.start()
        third = await place(process)
        await tab.until("document.getElementById('live').innerText === 'Live'")
        await tab.until(f"document.querySelector(\"[data-key='{third}']\")")
        streams = [request["headers"] for request in tab.requests if request["url"].endswith("/stream")]
        assert "Last-Event-ID" not in streams[0]
        assert all(int(headers["Last-Event-ID"]) > 0 for headers in streams[1:])
        assert tab.complaints == []


async def test_doubts_and_kills_cannot_be_overlooked(cluster: Cluster, tmp_path: Path) -> None:
    broker = await cluster.broker(dedupe="none", faults={"drop_answer": 1.0, "drop_reports": 1.0}).start()
    process = await cluster.process(
        **KEEPS_BOOKS,
        SOR_VENUES="broker",
        VENUE_URL_BROKER=broker.url,
        VENUE_DEDUPE_BROKER="none",
        VENUE_LOOKUP_BROKER="none",
    ).start()
    order_id = await place(process, type="LIMIT", price=100, timeInForce="GTC")
    operator: dict[str, Any] = {"scopes": ["admin:kill"], "subject": "ann"}
    async with opened_tab(tmp_path, process.url) as tab:
        await tab.until("[...document.querySelectorAll('.tile')].some((tile) => tile.innerText.includes('1 send'))")
        await paste(tab, token_of(process))
        await tab.until("document.querySelector('#orders-table tr[data-level=bad]')")
        assert "UNKNOWN (in doubt)" in await tab.text("#orders-table")
        async with aiohttp.ClientSession() as session:
            body = {"everything": True, "reason": HOSTILE}
            async with session.post(
                f"{process.url}/admin/kill?wait=0", json=body, headers=process.headers(**operator)
            ) as response:
                assert response.status == 200
        await tab.until("[...document.querySelectorAll('.tile')].some((tile) => tile.innerText.includes('1 active'))")
        assert HOSTILE not in await tab.text("#system")  # which kill needs the scope
        await paste(tab, token_of(process, **operator))
        await tab.until("document.querySelector('#kills table')")
        assert HOSTILE in await tab.text("#kills")
        await tab.run("[...document.querySelectorAll('button.tile')].at(0).click()")
        assert await tab.run("document.getElementById('orders-filter').value") == "doubt"
        await tab.until(f"document.querySelector(\"[data-key='{order_id}']\")")
        assert tab.complaints == []


async def test_an_expired_token_is_named_and_not_used_again(cluster: Cluster, tmp_path: Path) -> None:
    process = await cluster.process().start()
    old = issue_token(SECRET, "demo", clock=SystemClock(), ttl=timedelta(seconds=-60))
    async with opened_tab(tmp_path, process.url) as tab:
        await paste(tab, "not.a.token")
        await tab.until("document.getElementById('tokens-problem').innerText.includes('JSON Web Token')")
        await paste(tab, old)
        await tab.until("document.getElementById('orders-state').innerText.includes('the token has expired')")
        assert not await tab.run("document.getElementById('tokens').hidden")

        async def is_read_again() -> bool:
            return len([each for each in tab.requests if each["url"].endswith("/health/ready")]) >= 4

        await until(is_read_again)
        guesses = [each for each in tab.requests if "Authorization" in each["headers"]]
        assert 1 <= len(guesses) <= 12  # those that were under way when the first was rejected

        await paste(tab, token_of(process))
        await tab.until("document.getElementById('live').innerText === 'Live'")
        await tab.until("document.getElementById('balances').innerText.includes('does not keep the books')")
        assert "no orders yet" in await tab.text("#orders-table")
        assert tab.complaints == []
