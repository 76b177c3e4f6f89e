#!/bin/sh
# Checks a back office after a start or a recovery: /health, /stats, /positions, /balances, /ledger, /reconcile.
#
#   BACKOFFICE_URL          http://127.0.0.1:8082
#   BACKOFFICE_JWT          token; else one is made from JWT_HS256_SECRET and BACKOFFICE_ACCOUNT_ID (demo)
#   BACKOFFICE_STALE_SEC    fail if lastEventAt is older than this many seconds; 0 (default): not checked
#   BACKOFFICE_STRICT       1: no lastEventAt is a failure
#   BACKOFFICE_PASSFAIL     1: a summary line PASS or FAIL at the end
#
# Exit code 0: every check passed; 1: one failed; 2: the script cannot run. Needs curl and python3.
set -eu
LC_ALL=C
export LC_ALL

BACKOFFICE_URL=${BACKOFFICE_URL:-http://127.0.0.1:8082}
BACKOFFICE_ACCOUNT_ID=${BACKOFFICE_ACCOUNT_ID:-demo}
BACKOFFICE_STALE_SEC=${BACKOFFICE_STALE_SEC:-0}
BACKOFFICE_STRICT=${BACKOFFICE_STRICT:-0}
BACKOFFICE_PASSFAIL=${BACKOFFICE_PASSFAIL:-0}

export BACKOFFICE_STALE_SEC BACKOFFICE_STRICT

here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
need_tools
case $BACKOFFICE_STALE_SEC in
    '' | *[!0-9]*) cannot_run "BACKOFFICE_STALE_SEC must be a whole number of seconds, not '$BACKOFFICE_STALE_SEC'" ;;
esac
token=$(token_of "$BACKOFFICE_ACCOUNT_ID" "${BACKOFFICE_JWT:-}")

failures=0
passed() { printf 'ok    %s\n' "$1"; }
failed() {
    printf 'FAIL  %s\n' "$1"
    failures=$((failures + 1))
}

# check NAME PATH PROGRAM: the answer must be 200, and the python program must accept it.
# The program gets the body as `body` and prints what to show; it exits with a message to fail.
check() {
    if ! fetch "$BACKOFFICE_URL$2" "$token"; then
        failed "$1: $fetch_error"
        return
    fi
    if said=$(printf '%s' "$answer" | python3 -c "$PRELUDE$3" 2>&1); then
        passed "$1${said:+: $said}"
    else
        failed "$1: $said"
    fi
}

PRELUDE='
import json, os, sys
from decimal import Decimal
from datetime import datetime, timezone
try:
    body = json.load(sys.stdin, parse_float=Decimal, parse_int=Decimal)
except ValueError as error:
    sys.exit(f"the answer is not JSON: {error}")
'
check /health /health '
if body.get("status") != "ok":
    sys.exit("status is {}: {}".format(body.get("status"), body.get("reason")))
'
check /stats /stats '
read = body["lastEventAt"]
stale, strict = int(os.environ["BACKOFFICE_STALE_SEC"]), os.environ["BACKOFFICE_STRICT"] == "1"
if read is None:
    if strict:
        sys.exit("there is no lastEventAt (BACKOFFICE_STRICT=1)")
    print("no event was read yet")
else:
    age = (datetime.now(timezone.utc) - datetime.fromisoformat(read.replace("Z", "+00:00"))).total_seconds()
    if stale and age > stale:
        sys.exit(f"lastEventAt is {age:.0f} s old, allowed are {stale} s (BACKOFFICE_STALE_SEC)")
    print("processed {}, last event {:.0f} s ago".format(body["processed"], age))
'
check /positions '/positions?limit=500' 'print(len(body["positions"]), "open")'
check /balances '/balances?limit=500' '
for row in body["balances"]:
    total = sum(value for name, value in row.items() if name != "currency" and isinstance(value, Decimal))
    if total:
        sys.exit("{}: debits less credits are {}".format(row["currency"], total))
print(len(body["balances"]), "currencies, debits equal credits")
'
check /ledger '/ledger?limit=100' '
numbers = [entry["number"] for entry in body["entries"]]
if numbers != sorted(set(numbers)):
    sys.exit("entries are not in order")
print(len(numbers), "entries shown, the last is", numbers[-1] if numbers else 0)
'
check /reconcile /reconcile '
opened = [one for one in body["breaks"] if one["state"] == "open"]
if opened:
    shown = ", ".join("{} {} {} {}".format(one["breakId"], one["class"], one["amount"], one["unit"]) for one in opened[:5])
    sys.exit("{} open breaks: {}".format(len(opened), shown))
skipped = "; ".join("{}: {}".format(one["scope"], one["reason"]) for one in body["notCompared"])
print("no open break, compared at {}".format(body["comparedAt"]) + (", not compared: " + skipped if skipped else ""))
'

if [ "$BACKOFFICE_PASSFAIL" = 1 ]; then
    if [ "$failures" -eq 0 ]; then echo PASS; else echo "FAIL: $failures of 6 checks"; fi
fi
[ "$failures" -eq 0 ]
