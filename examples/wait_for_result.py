"""Places an order with conditions and prints the broker's result.

The quantity is in lots. The order is rejected if the spread is wider than 1 % of the mid price. After a lost connection
or a broker that is down, `do_order` repeats the request under the same key after 1, 2 and 4 seconds.
"""

from decimal import Decimal

from switchyard.client import ApiError, Client, RiskConstraints

with Client() as client:
    for max_spread in ("0.01", "0"):
        conditions = RiskConstraints(max_spread=Decimal(max_spread))
        try:
            result = client.do_order("USDJPY", "BUY", "0.1", risk_constraints=conditions)
        except ApiError as error:
            print("rejected:", error)
        else:
            print(result.status, result.filled_qty, "lots at", result.avg_price)
