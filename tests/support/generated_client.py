"""A program that uses a client generated from the contract; it prints what it got as JSON.

Runs with the generator's own interpreter, with the generated package on its path: URL and token are its arguments.
"""

import json
import sys

from switchyard_gateway_client import AuthenticatedClient, Client
from switchyard_gateway_client.api.documentation import get_index
from switchyard_gateway_client.api.events import list_order_events
from switchyard_gateway_client.api.operations import get_health
from switchyard_gateway_client.api.orders import cancel_order, do_order, get_order, list_orders, place_order
from switchyard_gateway_client.models import OrderRequest, OrderRequestSide, OrderRequestType, OrderRequestV11


def main(url: str, token: str) -> None:
    client = AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True)
    order = OrderRequest(
        symbol="USDJPY", side=OrderRequestSide.BUY, type_=OrderRequestType.LIMIT, qty=1000, price=0.001, tags=["mine"]
    )
    first = place_order.sync(client=client, body=order, idempotency_key="key-1")
    again = place_order.sync(client=client, body=order, idempotency_key="key-1")
    order.qty = 2000
    conflict = place_order.sync(client=client, body=order, idempotency_key="key-1")
    shown = get_order.sync(client=client, order_id=first.order_id)
    waited = do_order.sync(
        client=client,
        idempotency_key="key-2",
        body=OrderRequestV11.from_dict(
            {"order_id": "o-1", "instrument": "USDJPY", "side": "BUY", "qty": 0.1, "idempotency_key": "key-2"}
        ),
    )
    canceled = cancel_order.sync(client=client, order_id=first.order_id)
    missing = get_order.sync(client=client, order_id="ord_missing")
    events = list_order_events.sync(client=client, order_id=first.order_id)
    results = {
        "placed": [type(first).__name__, first.order_id, first.status],
        "again": again.order_id,
        "conflict": [type(conflict).__name__, conflict.reason],
        "shown": [type(shown).__name__, shown.price, shown.tags],
        "do_order": [type(waited).__name__, waited.status],
        "canceled": [type(canceled).__name__, canceled.status],
        "missing": [type(missing).__name__, missing.reason],
        "event": [type(events.events[0]).__name__, events.events[0].type_],
        "listed": len(list_orders.sync(client=client).orders),
        "health": get_health.sync(client=Client(base_url=url)).status,
        "index": get_index.sync(client=Client(base_url=url)).docs,
    }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
