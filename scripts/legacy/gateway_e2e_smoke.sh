#!/bin/sh
# Places an order and checks that the account's position in the books moves by its quantity.
#
#   GATEWAY_URL, BACKOFFICE_URL     http://127.0.0.1:8081, http://127.0.0.1:8082
#   WAIT_SEC                        longest wait for the position (10)
#   SYMBOL, QTY                     USDJPY, 1000 (a whole number; the order buys)
#   BACKOFFICE_JWT                  token; else made from JWT_HS256_SECRET and BACKOFFICE_ACCOUNT_ID (demo)
#
# The account must not trade the symbol meanwhile. Exit code 0: passed; 1: failed; 2: cannot run.
set -eu

GATEWAY_URL=${GATEWAY_URL:-http://127.0.0.1:8081}
BACKOFFICE_URL=${BACKOFFICE_URL:-http://127.0.0.1:8082}
BACKOFFICE_ACCOUNT_ID=${BACKOFFICE_ACCOUNT_ID:-demo}
WAIT_SEC=${WAIT_SEC:-10}
SYMBOL=${SYMBOL:-USDJPY}
QTY=${QTY:-1000}

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../ops/lib.sh"
need_tools
whole_number WAIT_SEC
whole_number QTY
token=$(token_of "$BACKOFFICE_ACCOUNT_ID" "${BACKOFFICE_JWT:-}")

before=$(position_of "$SYMBOL") || fail "the back office does not show positions"
place "$SYMBOL" BUY "$QTY"
expected=$(python3 -c 'import sys; from decimal import Decimal; print(Decimal(sys.argv[1]) + int(sys.argv[2]))' "$before" "$QTY")
until_true "$WAIT_SEC" position_is "$SYMBOL" "$expected" ||
    fail "the position in $SYMBOL is $(position_of "$SYMBOL") after $WAIT_SEC s (WAIT_SEC), expected $expected"
echo "PASS  the position in $SYMBOL went from $before to $expected"
