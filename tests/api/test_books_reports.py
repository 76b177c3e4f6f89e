"""P&L, statements and entries by people, as a user meets them."""

import asyncio
import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from switchyard.bootstrap import rebuild_books, verify_books
from tests.api.test_backoffice import filled, ignore, trading, until_read
from tests.support.backups import SqliteBackup
from tests.support.process import run_command


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def exact(body: bytes) -> Any:
    return json.loads(body, parse_float=Decimal, parse_int=Decimal)


async def test_a_day_of_trading_has_a_statement_that_adds_up_and_results_by_day_symbol_and_strategy(
    tmp_path: Path,
) -> None:
    async with trading(tmp_path, EXCHANGE_SIM_PARTIAL_STEPS_SIM="2") as (gateway, office):
        deposit: dict[str, Any] = {"type": "Deposit", "currency": "JPY", "amount": 1_000_000}
        first = await office.enter(**deposit)
        assert (first.status, first.json["by"], first.json["number"]) == (201, "ann", 1)
        assert (await office.enter(**deposit)).status == 200
        assert (await office.enter(**{**deposit, "amount": Decimal("1000000.00")})).status == 200
        assert (await office.enter(**{**deposit, "amount": 2})).status == 409
        assert (await office.enter(scopes=["admin:kill"], **deposit)).status == 403
        rejected: tuple[dict[str, Any], ...] = (
            {"type": "Deposit", "currency": "JPY", "amount": -1},
            {"type": "Deposit", "currency": "jpy", "amount": 1},
            {"type": "Deposit", "currency": "JPY", "amount": 1, "by": "bob"},
            {"type": "Adjustment", "currency": "JPY", "amount": 0},
            {"type": "Conversion", "currency": "JPY", "amount": 1, "toCurrency": "USD"},
            {"type": "Reversal", "reverses": "man_unknown"},
            {"type": "Reversal", "reverses": "\0"},
            {"type": "Fill", "currency": "JPY"},
            {"type": "Bonus"},
            {"type": "Deposit", "currency": "JPY", "amount": 1, "effectiveAt": "2999-01-01T00:00:00Z"},
            {
                "type": "OpeningPosition",
                "currency": "JPY",
                "symbol": "BTC",
                "side": "BUY",
                "qty": 1,
                "price": 1,
                "fee": 1,
            },
            # Their product has more digits than the books keep.
            {"type": "Fill", "currency": "JPY", "symbol": "BTC", "side": "BUY", "venue": "sim", "execId": "x1"}
            | dict.fromkeys(("qty", "price", "multiplier"), Decimal("123456789012345.12345678")),
        )
        for number, body in enumerate(rejected):
            assert (await office.enter(key=f"bad-{number}", **body)).status == 422, body
        trade: dict[str, Any] = {
            "currency": "USD",
            "symbol": "ETH",
            "side": "BUY",
            "venue": "sim",
            "qty": 1,
            "price": 1,
        }
        wanted: dict[str, Any] = {
            "type": "Conversion",
            "currency": "JPY",
            "amount": 100_000,
            "toCurrency": "USD",
            "rate": 0.00666678,
        }
        assert (await office.enter(key="fx", **wanted)).status == 201
        # A key books once, whatever it was used for.
        assert (await office.enter(type="Reversal", reverses=first.json["entryId"])).status == 409
        assert (await office.enter(type="Fill", **trade, execId="x1")).status == 409
        assert (await office.enter(key="fx", type="Reversal", reverses=first.json["entryId"])).status == 409
        assert (await office.get("/positions")).json["positions"] == []
        await filled(gateway, office, strategy="trend", qty=3000)
        await filled(gateway, office, strategy="carry", qty=1000, side="SELL")
        await filled(gateway, office, strategy="trend", qty=2000, side="SELL")
        await until_read(gateway, office)

        by_symbol, by_strategy, by_day = [
            exact((await office.get(f"/pnl?by={by}")).body)["rows"] for by in ("symbol", "strategy", "day")
        ]
        [symbol] = by_symbol
        assert (symbol["name"], symbol["fills"], symbol["unrealised"]) == ("USDJPY", 6, 0)
        assert [(row["name"], row["fills"]) for row in by_strategy] == [("carry", 2), ("trend", 4)]
        [day] = by_day
        assert (day["name"], day["realised"], day["unrealised"]) == (today(), symbol["realised"], None)
        # The account is flat; its strategies are not. What they realised differs by what they still hold.
        [position] = (await office.get("/positions?flat=true")).json["positions"]
        assert position["qty"] == 0
        total = sum(row["realised"] + row["unrealised"] for row in by_strategy)
        [jpy, usd] = exact((await office.get("/balances")).body)["balances"]
        assert symbol["realised"] == -jpy["trading"]
        assert total == symbol["realised"]
        assert sum(amount for name, amount in usd.items() if name != "currency") == 0
        assert (usd["cash"], usd["rounding"]) == (Decimal("666.68"), Decimal("-0.002"))

        statement = exact((await office.get(f"/statement?date={today()}&limit=3")).body)
        assert (statement["opening"], statement["final"]) == ([], False)
        assert statement["closing"] == [jpy, usd]
        assert statement["positions"] == []
        entries, cursor = statement["entries"], statement["nextCursor"]
        while cursor is not None:
            page = exact((await office.get(f"/statement?date={today()}&limit=3&cursor={cursor}")).body)
            entries, cursor = entries + page["entries"], page["nextCursor"]
        assert [entry["number"] for entry in entries] == list(range(1, len(entries) + 1))
        sums: dict[tuple[str, str], Decimal] = {}
        text = (await office.get(f"/statement?date={today()}&format=csv")).body.decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        for row in rows:
            if row["section"] == "entry" and row["account"]:
                key = row["account"], row["unit"]
                sums[key] = sums.get(key, Decimal(0)) + Decimal(row["amount"])
        closing = {(row["account"], row["unit"]): Decimal(row["amount"]) for row in rows if row["section"] == "closing"}
        assert closing == {key: amount for key, amount in sums.items() if amount and key[1] in ("JPY", "USD")}
        yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
        for limit, status in ((1000, 200), (1001, 422)):
            assert (await office.get(f"/statement?date={today()}&limit={limit}")).status == status
        before = exact((await office.get(f"/statement?date={yesterday}")).body)
        assert (before["entries"], before["closing"], before["final"]) == ([], [], True)
        for path in ("/pnl?", f"/statement?date={today()}&"):
            assert (await office.get(f"{path}accountId=other")).status == 404
            assert (await office.get(path, account=None)).status == 401
        queries = (
            "/pnl?by=week",
            "/pnl?from=2025-02-30",
            "/pnl?from=2025-02-02&to=2025-02-01",
            "/statement",
            "/statement?date=today",
            f"/statement?date={today()}&format=xml",
            f"/statement?date={today()}&format=csv&limit=1",
            f"/statement?date={today()}&cursor=before:3",
        )
        for query in queries:
            assert (await office.get(query)).status == 422, query


async def test_entries_of_people_are_carried_over_by_a_rebuild_to_the_same_hash(tmp_path: Path) -> None:
    async with trading(tmp_path) as (gateway, office):
        settings = gateway.engine.settings
        await office.enter(type="OpeningBalance", currency="JPY", amount=-5)
        order = await filled(gateway, office)
        [fill] = (await office.get(f"/ledger?orderId={order}&type=Fill")).json["entries"]
        reversal = await office.enter(key="r1", type="Reversal", reverses=fill["entryId"])
        assert (reversal.status, reversal.json["reverses"], reversal.json["reasonCode"]) == (
            201,
            fill["entryId"],
            "OPERATOR",
        )
        assert (await office.enter(key="r2", type="Reversal", reverses=fill["entryId"])).status == 422
        await filled(gateway, office, side="SELL")
        await until_read(gateway, office)
    verified = await verify_books(settings, ignore)
    assert (verified.entries, verified.differences, verified.lines) == (6, 0, ())
    rebuilt = await rebuild_books(settings, ignore)
    assert (rebuilt.hash, rebuilt.carried) == (verified.hash, 2)
    assert await verify_books(settings, ignore) == verified

    # By the command line, with the server stopped.
    environment = {"SWITCHYARD_DATA_DIR": str(settings.data_dir), "SWITCHYARD_STATE_DIR": str(settings.state_dir)}
    names = ("--account", "demo", "--key", "k9", "--by", "ann", "--reason", "monthly")
    command = ("ledger", "post", "fee", *names, "--currency", "JPY", "--amount")
    done = await asyncio.to_thread(run_command, *command, "12.5", "--json", **environment)
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)
    assert (entry["type"], entry["number"], entry["by"]) == ("Fee", 7, "ann")
    again = await asyncio.to_thread(run_command, *command, "12.5", **environment)
    assert "it was there before" in again.stdout
    other = await asyncio.to_thread(run_command, *command, "13", **environment)
    assert (other.returncode, "another content" in other.stderr) == (1, True), other.stderr
    checked = await asyncio.to_thread(run_command, "backoffice", "rebuild", "--verify", **environment)
    assert (checked.returncode, "7 entries" in checked.stdout) == (0, True), checked.stderr


async def test_after_a_restore_the_books_stop_until_a_person_adopts_the_new_epoch(tmp_path: Path) -> None:
    backup = SqliteBackup(tmp_path)
    async with trading(tmp_path) as (gateway, office):
        settings = gateway.engine.settings
        await filled(gateway, office)
        await until_read(gateway, office)
    backup.take()
    async with trading(tmp_path) as (gateway, office):
        lost = await filled(gateway, office, side="SELL", qty=300)
        await until_read(gateway, office)
    environment = {"SWITCHYARD_DATA_DIR": str(settings.data_dir), "SWITCHYARD_STATE_DIR": str(settings.state_dir)}
    adopt = ("backoffice", "adopt-epoch", "--by", "ann", "--reason", "restored")
    refused = await asyncio.to_thread(run_command, *adopt, **environment)
    assert (refused.returncode, "nothing to adopt" in refused.stderr) == (4, True), refused.stderr
    backup.restore()
    declared = await asyncio.to_thread(run_command, "db", "restored", **environment)
    assert declared.returncode == 0, declared.stderr
    async with trading(tmp_path) as (gateway, office):
        health = await office.operate("GET", "/health")
        assert (health.status, "adopt-epoch" in health.json["reason"]) == (503, True)
    adopted = await asyncio.to_thread(run_command, *adopt, **environment)
    assert (adopted.returncode, "2 entries are not in the journal" in adopted.stdout) == (0, True), adopted.stderr
    listed = await asyncio.to_thread(run_command, "ledger", "orphans", "--json", **environment)
    assert [json.loads(line)["orderId"] for line in listed.stdout.splitlines()] == [lost, lost]
    async with trading(tmp_path) as (gateway, office):
        await filled(gateway, office, qty=5000)
        await until_read(gateway, office)
        assert (await office.get("/health", account=None)).status == 200
        [position] = (await office.get("/positions")).json["positions"]
        assert position["qty"] == 5700
    verified = await verify_books(settings, ignore)
    assert (verified.entries, verified.lines) == (6, ())
