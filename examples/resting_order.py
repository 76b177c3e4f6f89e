"""Places a limit order far from the market, cancels it and prints its events."""

from switchyard.client import Client, OrderUpdate, is_final

with Client() as client:
    placed = client.place("USDJPY", "BUY", 1000, limit_price="50.5", client_order_id="example", tags=["demo"])
    print("canceling", client.cancel(placed.order_id).order_id)
    for event in client.stream(placed.order_id):
        if isinstance(event, OrderUpdate) and is_final(event.order.status):
            break
    for recorded in client.events(order_id=placed.order_id):
        print(recorded.seq, recorded.type)
