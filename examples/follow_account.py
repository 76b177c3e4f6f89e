"""Places several orders at once and follows all of them in one stream."""

import asyncio
from contextlib import aclosing

from switchyard.client import AsyncClient, OrderUpdate, ResyncRequired, is_final

SYMBOLS = ("USDJPY", "EURUSD", "GBPUSD")


async def main() -> None:
    async with AsyncClient() as client, aclosing(client.stream()) as events:
        await anext(events)  # the stream is open: nothing that happens from here on is missed
        placed = await asyncio.gather(*(client.place(symbol, "BUY", 1000) for symbol in SYMBOLS))
        is_open = {each.order_id for each in placed}
        async for event in events:
            match event:
                case OrderUpdate(order=order) if order.order_id in is_open and is_final(order.status):
                    print(order.symbol, order.status, order.avg_price)
                    is_open.remove(order.order_id)
                case ResyncRequired():
                    raise SystemExit("too far behind: read the current state with client.orders()")
            if not is_open:
                return


asyncio.run(main())
