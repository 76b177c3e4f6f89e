# Functions of the scripts in this folder and in ../legacy; sourced, not run. POSIX shell, curl, python3.

cannot_run() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 2
}

need_tools() {
    for tool in curl python3; do
        command -v "$tool" >/dev/null 2>&1 || cannot_run "$tool is needed and was not found"
    done
}

# token_of ACCOUNT TOKEN: prints TOKEN, or one for the account signed with JWT_HS256_SECRET, valid for an hour.
token_of() {
    if [ -n "$2" ]; then
        printf '%s' "$2"
        return
    fi
    # Not in a subshell of `$(…)` alone: the caller's `set -e` ends the script.
    [ -n "${JWT_HS256_SECRET:-}" ] || cannot_run "set a token, or JWT_HS256_SECRET to make one for account $1"
    ACCOUNT=$1 python3 -c '
import base64, hashlib, hmac, json, os, time
def part(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")
now = int(time.time())
claims = {"sub": os.environ["ACCOUNT"], "accountId": os.environ["ACCOUNT"], "iat": now, "exp": now + 3600}
for name, variable in (("aud", "SWITCHYARD_JWT_AUDIENCE"), ("iss", "SWITCHYARD_JWT_ISSUER")):
    if os.environ.get(variable):
        claims[name] = os.environ[variable]
signed = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()) + b"." + part(json.dumps(claims).encode())
digest = hmac.new(os.environ["JWT_HS256_SECRET"].encode(), signed, hashlib.sha256).digest()
print((signed + b"." + part(digest)).decode(), end="")
'
}

# fetch URL TOKEN [curl options]: sets `answer`, `status` and, where the status is not 2xx, `fetch_error`.
# The token is passed on stdin, because arguments are shown to every user of the machine.
fetch() {
    url=$1
    bearer=$2
    shift 2
    fetch_error=
    if ! answer=$(printf 'header = "Authorization: Bearer %s"\n' "$bearer" |
        curl --silent --show-error --max-time 30 --write-out '\n%{http_code}' --config - "$@" "$url" 2>&1); then
        fetch_error="no answer: $(printf '%s' "$answer" | tail -n 2 | tr '\n' ' ')"
        status=000
        return 1
    fi
    status=$(printf '%s' "$answer" | tail -n 1)
    answer=$(printf '%s' "$answer" | sed '$d')
    case $status in
        2??) return 0 ;;
    esac
    fetch_error="HTTP $status $answer"
    return 1
}

# member NAME: prints a member of the JSON object in `answer`.
member() {
    printf '%s' "$answer" | python3 -c '
import json, sys
value = json.load(sys.stdin)
for name in sys.argv[1].split("."):
    value = value[int(name)] if isinstance(value, list) else value[name]
print("null" if value is None else value)
' "$1"
}

# place SYMBOL SIDE QTY: places a market order at the gateway; sets `order_id`.
place() {
    body=$(printf '{"symbol":"%s","side":"%s","type":"MARKET","qty":%s}' "$1" "$2" "$3")
    key="e2e-$(date +%s)-$$-$(python3 -c 'import secrets; print(secrets.token_hex(8))')"
    fetch "$GATEWAY_URL/orders" "$token" --request POST --header 'Content-Type: application/json' \
        --header "Idempotency-Key: $key" --data "$body" || fail "the order was not accepted: $fetch_error"
    order_id=$(member orderId)
    [ "$status" = 202 ] || fail "the order was answered with $status instead of 202"
    echo "accepted $order_id"
}

fail() {
    printf 'FAIL  %s\n' "$1"
    exit 1
}

# until_true SECONDS COMMAND…: repeats the command until it succeeds; fails after so many seconds.
until_true() {
    left=$(($1 * 10))
    shift
    while ! "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 0.1 2>/dev/null || sleep 1
    done
}

# order_is STATUS: whether the order has this status.
order_is() {
    fetch "$GATEWAY_URL/orders/$order_id" "$token" && [ "$(member status)" = "$1" ]
}

# fills_booked: prints how many fills of the order the ledger has.
fills_booked() {
    fetch "$BACKOFFICE_URL/ledger?orderId=$order_id&type=Fill&limit=999" "$token" || return 1
    printf '%s' "$answer" | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["entries"]))'
}

is_booked() {
    [ "$(fills_booked)" -ge 1 ] 2>/dev/null
}

# position_of SYMBOL: prints the quantity in the books, 0 where there is none.
position_of() {
    fetch "$BACKOFFICE_URL/positions?limit=500&flat=true" "$token" || {
        printf '%s\n' "$fetch_error" >&2
        return 1
    }
    printf '%s' "$answer" | python3 -c '
import json, sys
from decimal import Decimal
found = [row["qty"] for row in json.load(sys.stdin, parse_float=Decimal)["positions"] if row["symbol"] == sys.argv[1]]
print(found[0] if found else 0)
' "$1"
}

position_is() {
    [ "$(position_of "$1")" = "$2" ]
}

whole_number() {
    eval "value=\${$1}"
    case $value in
        '' | *[!0-9]*) cannot_run "$1 must be a whole number, not '$value'" ;;
    esac
}
