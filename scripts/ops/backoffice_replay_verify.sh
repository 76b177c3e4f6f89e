#!/bin/sh
# Replays an account's ledger, read from the API, and compares the result with the live back office.
#
# It reads every entry of /ledger from the first on, checks numbers, hash chain and that each entry balances, sums the
# legs, and compares the sums with /balances and /positions. Then it looks for open breaks in /reconcile. The process
# keeps running; `switchyard backoffice rebuild --verify` compares with the journal as well, and needs it stopped.
#
#   BACKOFFICE_URL          http://127.0.0.1:8082
#   BACKOFFICE_JWT          token; else made from JWT_HS256_SECRET and BACKOFFICE_ACCOUNT_ID (demo)
#   REPLAY_TRIES            how often to start again if entries are added meanwhile (5)
#
# Exit code 0: consistent; 1: not; 2: cannot run. Needs curl and python3.
set -eu

BACKOFFICE_URL=${BACKOFFICE_URL:-http://127.0.0.1:8082}
BACKOFFICE_ACCOUNT_ID=${BACKOFFICE_ACCOUNT_ID:-demo}
REPLAY_TRIES=${REPLAY_TRIES:-5}

here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
need_tools
whole_number REPLAY_TRIES
token=$(token_of "$BACKOFFICE_ACCOUNT_ID" "${BACKOFFICE_JWT:-}")
work=$(mktemp -d "${TMPDIR:-/tmp}/replay_verify.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# download FOLDER: saves all pages of the ledger, then balances and positions.
download() {
    mkdir "$1"
    page=0
    cursor=
    while :; do
        fetch "$BACKOFFICE_URL/ledger?since=0&limit=999$cursor" "$token" || fail "/ledger: $fetch_error"
        printf '%s' "$answer" >"$1/ledger.$(printf '%08d' "$page")"
        next=$(member nextCursor)
        [ "$next" != null ] || break
        cursor="&cursor=$next"
        page=$((page + 1))
    done
    for name in balances positions; do
        page=0
        cursor=
        while :; do
            query="limit=500$cursor"
            [ "$name" = balances ] || query="$query&flat=true"
            fetch "$BACKOFFICE_URL/$name?$query" "$token" || fail "/$name: $fetch_error"
            printf '%s' "$answer" >"$1/$name.$(printf '%08d' "$page")"
            next=$(member nextCursor)
            [ "$next" != null ] || break
            cursor="&cursor=$next"
            page=$((page + 1))
        done
    done
    fetch "$BACKOFFICE_URL/ledger?limit=1" "$token" || fail "/ledger: $fetch_error"
    printf '%s' "$answer" >"$1/last"
}

try=1
while :; do
    download "$work/$try"
    code=0
    python3 "$here/replay_ledger.py" "$work/$try" || code=$?
    [ "$code" -eq 3 ] || break
    [ "$try" -lt "$REPLAY_TRIES" ] || fail "entries were added in each of $REPLAY_TRIES tries (REPLAY_TRIES)"
    try=$((try + 1))
done
[ "$code" -eq 0 ] || exit 1
fetch "$BACKOFFICE_URL/reconcile" "$token" || fail "/reconcile: $fetch_error"
opened=$(printf '%s' "$answer" | python3 -c '
import json, sys
print(" ".join(one["breakId"] for one in json.load(sys.stdin)["breaks"] if one["state"] == "open"))
')
[ -z "$opened" ] || fail "open breaks: $opened"
echo PASS
