"""Two venue names that lead to one broker: both read every report, and each fill counts once."""

import aiohttp

from tests.support.cluster import Cluster
from tests.support.figures import scrape
from tests.support.orders import place, until_all_final
from tests.support.polling import until


async def test_two_names_of_one_broker_count_each_fill_once(
    engine_settings: dict[str, str], cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker().start()
    switchyard = await cluster.process(
        **engine_settings,
        SOR_VENUES="sima,simb",
        SOR_SYMBOL_ROUTES="USDJPY=sima,EURUSD=simb",
        VENUE_URL_SIMA=broker.url,
        VENUE_URL_SIMB=broker.url,
        VENUE_DEDUPE_SIMA="forever",
        VENUE_DEDUPE_SIMB="forever",
    ).start()
    for symbol in ("USDJPY", "EURUSD"):
        await place(session, switchyard, symbol, symbol=symbol)

    async def are_read_twice() -> bool:
        figures = await scrape(session, switchyard.url)
        return all(figures.get(f"venue_reports_total{{{result}}}") == 2 for result in ("applied", "other_venue"))

    await until(are_read_twice, lambda: switchyard.log)
    orders = await until_all_final(session, switchyard)
    assert [(order["status"], order["filledQty"]) for order in orders] == [("FILLED", 1000)] * 2
    assert "order_overfilled" not in switchyard.log
    assert "report_unmatched" not in switchyard.log
    assert switchyard.log.count("report_of_another_venue") == 2
