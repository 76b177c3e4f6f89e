"""Symbols and labels over HTTP: a typo is not filled, and no label looks like another."""

from pathlib import Path

from tests.support.do_order import do_order
from tests.support.gateway import RunningGateway, running_gateway


async def test_a_misspelt_symbol_is_rejected_with_a_hint(gateway: RunningGateway) -> None:
    for symbol in ("usdjpy", "USD/JPY", "USDJPI"):
        answer = await gateway.place(symbol=symbol)
        assert (answer.status, answer.json["reason"], answer.json["field"]) == (422, "UNKNOWN_SYMBOL", "symbol")
        assert answer.json["message"].endswith("did you mean USDJPY?")
    unlisted = await gateway.place(symbol="TSLA", key="k")
    assert (unlisted.status, unlisted.json["reason"]) == (422, "UNKNOWN_SYMBOL")
    assert "SWITCHYARD_UNLISTED_SYMBOLS=allow" in unlisted.json["message"]
    assert (await gateway.get("/orders")).json["orders"] == []


async def test_do_order_rejects_an_unlisted_instrument(gateway: RunningGateway) -> None:
    answer = await do_order(gateway, "k", instrument="eurusd")
    assert (answer.status, answer.json["error"], answer.json["reason_code"]) == (
        422,
        "VALIDATION_ERROR",
        "UNKNOWN_SYMBOL",
    )
    assert (answer.json["field"], answer.json["message"]) == (
        "instrument",
        "instrument: is not a listed instrument: did you mean EURUSD?",
    )


async def test_the_symbols_of_the_specifications_examples_are_filled_near_their_market(
    embedded: RunningGateway,
) -> None:
    for symbol, low, high in (
        ("BTC", 50_000, 70_000),
        ("ETH", 2_500, 3_500),
        ("XRP", 0.5, 0.7),
        ("AAPL", 150, 210),
        ("EURUSD", 1.0, 1.2),
    ):
        order_id = (await embedded.place(symbol=symbol, qty=1000)).json["orderId"]
        order = await embedded.until_status(order_id, "FILLED")
        assert low < order["avgPrice"] < high, symbol


async def test_the_settings_can_allow_unlisted_symbols(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_UNLISTED_SYMBOLS="allow") as gateway:
        accepted = await gateway.place(symbol="TSLA", qty=1)
        assert accepted.status == 202
        fraction = await gateway.place(symbol="TSLA", qty=1.5)
        assert (fraction.status, fraction.json["field"]) == (422, "qty")
        typo = await gateway.place(symbol="usdjpy")
        assert (typo.status, typo.json["reason"]) == (422, "UNKNOWN_SYMBOL")
        lots = await do_order(gateway, "k", instrument="TSLA")
        assert (lots.status, lots.json["reason_code"]) == (422, "UNKNOWN_SYMBOL")
        # The setting has no effect here: an unlisted symbol has no lot.
        assert "instruments" in lots.json["message"] and "UNLISTED" not in lots.json["message"]


async def test_a_label_that_looks_like_another_is_rejected_and_named(gateway: RunningGateway) -> None:
    for label in (" a", "a ", "a\u200bb", "a\u202eb", "e\u0301", "\u3164"):
        for field, value in (("clientOrderId", label), ("tags", [label]), ("strategy", label)):
            answer = await gateway.place(**{field: value})  # type: ignore[arg-type]
            assert (answer.status, answer.json["field"]) == (422, field), (field, label)
        answer = await do_order(gateway, "k", order_id=label)
        assert (answer.status, answer.json["field"]) == (422, "order_id")
    capital = await gateway.place(strategy="Carry")
    assert (capital.status, capital.json["field"]) == (422, "strategy")
    kept = await gateway.place(clientOrderId="日経 225", strategy="carry.v2", tags=["é"])
    order = await gateway.order(kept.json["orderId"])
    assert (order["clientOrderId"], order["strategy"], order["tags"]) == ("日経 225", "carry.v2", ["é"])
