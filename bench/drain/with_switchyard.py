"""Switchyard: `fill ROWS` accepts orders as a gateway does; `switchyard worker` drains them."""

import asyncio
import sys
from itertools import cycle, product

import msgspec
import uvloop

from bench.drain.jobs import PAYLOAD, chunks
from switchyard.bootstrap import running_engine, upgrade_if_new
from switchyard.domain.ids import AccountId
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS
from switchyard.settings import load_settings

# Orders of one account and symbol are sent one after the other; a real installation has many of both.
ACCOUNTS = 100
SYMBOLS = [symbol for symbol, instrument in DEFAULT_INSTRUMENTS.items() if instrument.kind == "fx"]


async def fill(rows: int) -> None:
    settings = load_settings()
    await upgrade_if_new(settings)
    order = msgspec.json.decode(PAYLOAD) | {"price": 100}
    lanes = cycle(product(SYMBOLS, range(ACCOUNTS)))
    async with running_engine(settings, "gateway") as engine:
        service = engine.services.orders
        for numbers in chunks(rows):
            await asyncio.gather(
                *(
                    service.place(AccountId(f"bench-{account:03}"), order | {"symbol": symbol}, f"key-{number}")
                    for number, (symbol, account) in zip(numbers, lanes, strict=False)
                )
            )


if __name__ == "__main__":
    uvloop.run(fill(int(sys.argv[2])))
