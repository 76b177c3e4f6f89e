"""Places an order and waits for its end."""

from switchyard.client import Client, OrderUpdate, is_final

with Client() as client:
    placed = client.place("USDJPY", "BUY", 1000)
    print("placed", placed.order_id)
    for event in client.stream(placed.order_id):
        if isinstance(event, OrderUpdate):
            order = event.order
            print(order.status, order.filled_qty, "of", order.qty, "at", order.avg_price)
            if is_final(order.status):
                break
