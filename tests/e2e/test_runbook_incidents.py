"""Three planted incidents, resolved by the commands of their pages alone: doubt, a break, a restored database."""

from pathlib import Path

import aiohttp

from tests.support.books import KEEPS_BOOKS, read_books
from tests.support.cluster import Cluster
from tests.support.figures import scrape
from tests.support.orders import get, place, until_all_final, until_statuses
from tests.support.polling import until
from tests.support.runbook import Operator, block_after, commands_of, first_column

SIGNED = {"NAME": "ann", "TEXT": "'as the page says'"}


async def test_orders_in_doubt_are_resolved_by_their_page(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    broker = await cluster.broker(dedupe="none").start()
    process = await cluster.process(name="site", **broker.client_settings()).start()
    operator = Operator(process)
    await broker.set_faults(drop_answer=1)
    sent = await place(session, process, price=1)
    await until_statuses(session, process, "UNKNOWN")
    await broker.set_faults(drop_answer=0, refused_5xx=1)
    unsent = await place(session, process, price=1)
    await until_statuses(session, process, "UNKNOWN")

    [listing, showing, venues] = commands_of("doubt.md", "OrderInDoubt")
    rows = first_column(await operator.run(listing))
    assert len(rows) == 2
    assert "open" in await operator.run(venues)
    [listing, _, as_sent, as_not_sent] = commands_of("doubt.md", "DoubtUnresolved")
    for row in rows:
        shown = await operator.run(showing, {"OUTBOX_ID": row})
        # What a person sees on the venue's screen.
        verdict = as_sent if any(client_order_id in shown for client_order_id in broker.orders()) else as_not_sent
        await operator.run(verdict, {"OUTBOX_ID": row, **SIGNED})

    assert "no outbox rows are uncertain" in await operator.run(listing)
    assert (await scrape(session, process.url))["outbox_uncertain"] == 0
    assert (await get(session, process, f"/orders/{sent}"))["status"] == "WORKING"
    assert (await get(session, process, f"/orders/{unsent}"))["status"] == "CANCELED"
    assert await operator.problems() == {}


async def test_a_break_is_resolved_by_its_page(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    broker = await cluster.broker(dedupe="forever").start()
    settings = broker.client_settings(
        SWITCHYARD_RECONCILE_SEC="86400", SWITCHYARD_RECONCILE_QUIET_SEC="0", **KEEPS_BOOKS
    )
    process = await cluster.process(name="site", **settings).start()
    operator = Operator(process)
    await place(session, process)
    await until_all_final(session, process)
    body = {"idempotency_key": "tel-1", "client_order_id": "tel-1", "symbol": "USDJPY", "intent": "SELL", "qty": 700}
    order = {**body, "type": "MARKET", "time_in_force": "IOC"}
    async with session.post(f"{broker.url}/orders", json=order, headers={"Idempotency-Key": "tel-1"}) as response:
        assert response.status == 200, await response.text()

    [comparing, showing] = commands_of("breaks.md", "Look at it")
    listed = ""

    async def is_confirmed() -> bool:
        nonlocal listed
        listed = await operator.run(comparing, codes=(0, 1))
        return " open " in listed

    await until(is_confirmed, lambda: listed)
    assert (await operator.problems()).keys() == {"reconcile"}
    [break_id] = [word for word in first_column(listed) if word.startswith("brk_")]
    shown = await operator.run(showing, {"BREAK_ID": break_id})
    assert "-700 USDJPY" in shown and "fill" in shown and "missing_here" in shown
    [adopting, comparing] = commands_of("breaks.md", "Adopt a foreign fill")
    await operator.run(adopting, {"BREAK_ID": break_id, "ACCOUNT": "demo", **SIGNED})
    assert "no breaks" in await operator.run(comparing)
    assert "no breaks" in await operator.run("switchyard reconcile --full")  # as after a restart
    assert (await scrape(session, process.backoffice_url))["backoffice_breaks"] == 0
    assert await operator.problems() == {}


async def test_a_restored_database_is_brought_back_by_its_page(
    cluster: Cluster, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(dedupe="forever").start()
    settings = broker.client_settings(
        SWITCHYARD_RECONCILE_SEC="86400", SWITCHYARD_RECONCILE_QUIET_SEC="0", **KEEPS_BOOKS
    )
    process = await cluster.process(name="site", **settings).start()
    operator = Operator(process)
    for number in range(5):
        await place(session, process, key=f"kept-{number}")
    await until_all_final(session, process)
    assert process.stop() == 0
    data, backup = Path(process.settings["SWITCHYARD_DATA_DIR"]), tmp_path / "backup"
    backup.mkdir()
    (backup / "switchyard.db").write_bytes((data / "switchyard.db").read_bytes())
    await process.start()
    for number in range(5):
        await place(session, process, key=f"lost-{number}")
    await until_all_final(session, process)
    assert process.stop() == 0

    await operator.run(block_after("restore.md", "**A SQLite backup**").replace("/backup", str(backup)))
    process.spawn()
    assert process.wait() == 4  # it does not send from an older database
    assert "switchyard db restored" in process.log
    [restored, adopt] = commands_of("restore.md", "3. Declare it")
    assert "epoch 2" in await operator.run(restored)
    assert "10 entries" in await operator.run(adopt, SIGNED)
    await process.start()
    [listing, _, comparing, _, verifying] = commands_of("restore.md", "5. Check")

    async def is_settled() -> bool:
        return "no outbox rows" in await operator.run(listing)

    await until(is_settled, lambda: process.log, pause_seconds=0.5)
    # A client repeats the requests that the database has lost: the venue executed them before.
    for number in range(5):
        await place(session, process, key=f"lost-{number}")
    await until_all_final(session, process)
    broker.check_nothing_twice()
    assert broker.orders().total() == 10
    listed = ""

    async def are_open() -> bool:
        nonlocal listed
        listed = await operator.run(comparing, codes=(0, 1))
        return " open " in listed

    # The fills of the repeated orders are booked once, under the ids of the lost orders.
    await until(are_open, lambda: listed)
    breaks = [word for word in first_column(listed) if word.startswith("brk_")]
    assert len(breaks) == 5
    [explaining] = commands_of("breaks.md", "Explain a break")
    for break_id in breaks:
        await operator.run(explaining, {"BREAK_ID": break_id, **SIGNED})
    assert await operator.problems() == {}
    [position] = (await read_books(session, process, "/positions"))["positions"]
    assert position["qty"] == 10_000
    await operator.run("switchyard reconcile --full")  # as after a restart: nothing new
    assert await operator.problems() == {}
    assert process.stop() == 0
    assert "valid" in await operator.run(verifying)
