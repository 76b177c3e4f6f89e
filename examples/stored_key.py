"""Places an order once, even if the program crashes and is started again.

The idempotency key is stored before the order is sent. A second run with the same file finds the first order instead of
placing another one. The first argument is the file, by default `order.key`.
"""

import sys
from pathlib import Path
from uuid import uuid4

from switchyard.client import Client

file = Path(sys.argv[1] if len(sys.argv) > 1 else "order.key")
if not file.exists():
    file.write_text(str(uuid4()))
with Client() as client:
    placed = client.place("EURUSD", "SELL", 2000, idempotency_key=file.read_text())
print("found" if placed.replayed else "placed", placed.order_id)
