#!/bin/sh
# Places an order, waits for its fill and its entry in the books, then runs backoffice_recovery_check.sh.
#
#   GATEWAY_URL, BACKOFFICE_URL     http://127.0.0.1:8081, http://127.0.0.1:8082
#   WAIT_SEC                        longest wait for the fill, and again for its entry (2)
#   SYMBOL, SIDE, QTY               USDJPY, BUY, 1000
#   BACKOFFICE_JWT                  token; else made from JWT_HS256_SECRET and BACKOFFICE_ACCOUNT_ID (demo)
#
# The variables of backoffice_recovery_check.sh apply as well. Exit code 0: passed; 1: failed; 2: cannot run.
set -eu

GATEWAY_URL=${GATEWAY_URL:-http://127.0.0.1:8081}
BACKOFFICE_URL=${BACKOFFICE_URL:-http://127.0.0.1:8082}
BACKOFFICE_ACCOUNT_ID=${BACKOFFICE_ACCOUNT_ID:-demo}
WAIT_SEC=${WAIT_SEC:-2}
SYMBOL=${SYMBOL:-USDJPY}
SIDE=${SIDE:-BUY}
QTY=${QTY:-1000}

here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
need_tools
whole_number WAIT_SEC
token=$(token_of "$BACKOFFICE_ACCOUNT_ID" "${BACKOFFICE_JWT:-}")

place "$SYMBOL" "$SIDE" "$QTY"
until_true "$WAIT_SEC" order_is FILLED || fail "$order_id was not filled within $WAIT_SEC s (WAIT_SEC): $answer"
echo "filled   $order_id"
until_true "$WAIT_SEC" is_booked || fail "the books have no fill of $order_id after $WAIT_SEC s (WAIT_SEC)"
echo "booked   $order_id"

BACKOFFICE_JWT=$token
export BACKOFFICE_JWT BACKOFFICE_URL BACKOFFICE_ACCOUNT_ID
sh "$here/backoffice_recovery_check.sh"
