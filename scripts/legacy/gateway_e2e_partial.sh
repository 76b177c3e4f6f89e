#!/bin/sh
# Places an order that is filled in parts and checks its reports, its totals, its audit events and its entries.
#
#   GATEWAY_URL, BACKOFFICE_URL     http://127.0.0.1:8081, http://127.0.0.1:8082
#   WAIT_SEC                        longest wait for the last fill, and again for its entry (15)
#   PARTS_MIN                       least number of fills (2); the venue needs EXCHANGE_SIM_PARTIAL_STEPS_<VENUE>
#   DELAY_MS_MIN                    least time from acceptance to the first fill (0); see EXCHANGE_SIM_DELAY_MS_<VENUE>
#   SYMBOL, QTY                     USDJPY, 1000
#   BACKOFFICE_JWT                  token; else made from JWT_HS256_SECRET and BACKOFFICE_ACCOUNT_ID (demo)
#
# Exit code 0: passed; 1: failed; 2: cannot run.
set -eu

GATEWAY_URL=${GATEWAY_URL:-http://127.0.0.1:8081}
BACKOFFICE_URL=${BACKOFFICE_URL:-http://127.0.0.1:8082}
BACKOFFICE_ACCOUNT_ID=${BACKOFFICE_ACCOUNT_ID:-demo}
WAIT_SEC=${WAIT_SEC:-15}
PARTS_MIN=${PARTS_MIN:-2}
DELAY_MS_MIN=${DELAY_MS_MIN:-0}
SYMBOL=${SYMBOL:-USDJPY}
QTY=${QTY:-1000}
export PARTS_MIN DELAY_MS_MIN QTY

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../ops/lib.sh"
need_tools
whole_number WAIT_SEC
whole_number PARTS_MIN
whole_number DELAY_MS_MIN
token=$(token_of "$BACKOFFICE_ACCOUNT_ID" "${BACKOFFICE_JWT:-}")

place "$SYMBOL" BUY "$QTY"
until_true "$WAIT_SEC" order_is FILLED || fail "$order_id was not filled within $WAIT_SEC s (WAIT_SEC): $answer"
fetch "$GATEWAY_URL/orders/$order_id/events?limit=1000" "$token" || fail "no audit events: $fetch_error"
parts=$(printf '%s' "$answer" | python3 -c '
import json, os, sys
from datetime import datetime
from decimal import Decimal
events = json.load(sys.stdin, parse_float=Decimal, parse_int=Decimal)["events"]
types = [event["type"] for event in events]
for name in ("OrderAccepted", "ExecutionReport", "OrderUpdated"):
    if name not in types:
        sys.exit(f"there is no audit event {name}: {types}")
at = lambda event: datetime.fromisoformat(event["at"].replace("Z", "+00:00"))
fills = [event for event in events if event["type"] == "ExecutionReport" and event["data"].get("lastQty")]
quantities = [Decimal(event["data"]["lastQty"]) for event in fills]
if len(fills) < int(os.environ["PARTS_MIN"]):
    sys.exit("{} fills, expected at least {} (PARTS_MIN)".format(len(fills), os.environ["PARTS_MIN"]))
if sum(quantities) != Decimal(os.environ["QTY"]):
    sys.exit("the fills sum to {}, the order is {}".format(sum(quantities), os.environ["QTY"]))
accepted = next(event for event in events if event["type"] == "OrderAccepted")
delay = (at(fills[0]) - at(accepted)).total_seconds() * 1000
if delay < int(os.environ["DELAY_MS_MIN"]):
    sys.exit("the first fill came after {:.0f} ms, expected {} (DELAY_MS_MIN)".format(delay, os.environ["DELAY_MS_MIN"]))
print(len(fills))
' 2>&1) || fail "$parts"
all_booked() { [ "$(fills_booked)" = "$parts" ]; }
until_true "$WAIT_SEC" all_booked || fail "the books have $(fills_booked) fills of $order_id, the gateway $parts"
echo "PASS  $order_id was filled in $parts parts, all of them booked"
