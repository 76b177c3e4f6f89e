"""The tables of general and per-venue settings, and the structs that hold their values.

The reference page `docs/reference/settings.md` is generated from the tables.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

import msgspec

from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.market.routing import AccountRoutes, Route
from switchyard.domain.orders.order import ORDER_TYPES, TIMES_IN_FORCE, OrderType, TimeInForce
from switchyard.domain.risk.checks import RiskLimits
from switchyard.settings import parse
from switchyard.settings.idempotency import IdempotencySettings
from switchyard.settings.kafka import KafkaSettings
from switchyard.settings.parse import Secret, SecretNames, Setting
from switchyard.settings.pdca import PdcaApiSettings, RecheckSettings
from switchyard.settings.tracing import TracingSettings

SETTINGS: tuple[Setting, ...] = (
    Setting("SWITCHYARD_DATA_DIR", "data_dir", "var", Path,
            "Folder for the SQLite database, generated secrets, the audit file and the books of paper exchanges. A "
            "relative path starts at the working directory. Only its owner can read it (0700, files 0600)."),
    Setting("SWITCHYARD_HOST", "host", "127.0.0.1", parse.text,
            "Address on which the gateway, or the metrics server of a worker, listens. The default accepts connections "
            "from this machine only."),
    Setting("SWITCHYARD_STATE_DIR", "state_dir", None, Path,
            "Folder outside the data folder for a signed copy of the journal's head, by which a restored older data "
            "folder or database, or an empty one in its place, is noticed before anything is sent. The copy begins with the "
            "first start that has a venue outside the process or PostgreSQL. Unset: `switchyard` in `$XDG_STATE_HOME`, else "
            "in `~/.local/state`."),
    Setting("SWITCHYARD_PORT", "port", "8081", parse.whole(0, 65535),
            "TCP port of the gateway; `0` chooses a free port."),
    Setting("SWITCHYARD_ALLOWED_HOSTS", "allowed_hosts", "", parse.host_names,
            "Host names, without ports and separated by commas, under which clients reach the gateway, beside `localhost`, "
            "`127.0.0.1`, `::1` and `SWITCHYARD_HOST`. A request for another name gets 421, except `/health` and "
            "`/metrics`: a web page whose name resolves to this machine must not reach the gateway. `*` allows every "
            "name."),
    Setting("SWITCHYARD_TRUSTED_PROXIES", "trusted_proxies", "", parse.networks,
            "Addresses or networks of the proxies in front of the gateway, separated by commas, such as `10.0.0.0/8`. "
            "The client of a request from one of them is the address in its `X-Forwarded-For`; limits and rates count "
            "by it. Unset: the header is ignored."),
    Setting("SWITCHYARD_CONNECTIONS_MAX", "connections_max", "10000", parse.whole(1, 1_000_000),
            "Open HTTP connections, at most the limit of open files less 500. The last fifth is kept for addresses "
            "with fewer than 16 connections."),
    Setting("SWITCHYARD_CONNECTIONS_PER_ADDRESS_MAX", "connections_per_address_max", "2000", parse.whole(1, 1_000_000),
            "Open HTTP connections per client address (IPv6: per /64 network). Behind a trusted proxy, the open "
            "requests and streams of each client."),
    Setting("SWITCHYARD_STREAMS_PER_ACCOUNT_MAX", "streams_per_account_max", "100", parse.whole(1, 1_000_000),
            "Open streams per account and gateway. Further ones get 429 `TOO_MANY_STREAMS`."),
    Setting("SWITCHYARD_METRICS_PORT", "metrics_port", None, parse.whole(0, 65535),
            "TCP port on which a `worker` process serves `/metrics` and `/health`; `0` chooses a free port. Unset: the "
            "worker serves neither. A gateway serves both on its own port."),
    Setting("SWITCHYARD_BACKOFFICE", "backoffice", "true", parse.flag,
            "Whether `up` also keeps the books: it runs a child process that posts the journal's events to a ledger and "
            "serves the back office's API. `false`: a separate `backoffice` process does, or none."),
    Setting("SWITCHYARD_BACKOFFICE_URL", "backoffice_url", None, parse.books_url,
            "Where the books are: `postgresql://…`, in the schema `backoffice` of that database, or `sqlite` for the file "
            "`backoffice.db` in the data folder. Unset: in the database of `SWITCHYARD_DATABASE_URL`, or in the file "
            "where that is unset.", secret=True),
    Setting("SWITCHYARD_BACKOFFICE_PORT", "backoffice_port", "8082", parse.whole(0, 65535),
            "TCP port of the back office's API, on the address `SWITCHYARD_HOST`; `0` chooses a free port."),
    Setting("SWITCHYARD_DASHBOARD", "dashboard", "true", parse.flag,
            "Whether a gateway serves the dashboard page at `/dashboard`, and at `/` to browsers. The page itself contains no "
            "data: everything that it shows needs the user's token."),
    Setting("SWITCHYARD_DASHBOARD_BOOKS_URL", "dashboard_books_url", None, parse.http_url,
            "Back office whose balances, P&L and breaks the dashboard of a gateway without books shows, as `http://host:8082`. The "
            "gateway passes the user's token on to it. Both must have the same `JWT_HS256_SECRET`."),
    Setting("SWITCHYARD_RECONCILE", "reconcile", "true", parse.flag,
            "Whether a process that keeps the books also compares them, again and again, with its own entries, with the "
            "gateway and with the venues' statements."),
    Setting("SWITCHYARD_RECONCILE_SEC", "reconcile_interval", "60", parse.seconds(1, 86_400),
            "Pause in seconds between two passes of the reconciliation."),
    Setting("SWITCHYARD_RECONCILE_QUIET_SEC", "reconcile_quiet", "5", parse.seconds(0, 3_600),
            "Orders and positions that changed within so many seconds before a pass are left for the next one."),
    Setting("SWITCHYARD_DATABASE_URL", "database_url", None, parse.database_url,
            "PostgreSQL database, as `postgresql://user:password@host:port/name`. Unset: SQLite in the data folder, for "
            "a single process.", secret=True),
    Setting("SWITCHYARD_REDIS_URL", "redis_url", None, parse.redis_url,
            "Redis server for the idempotency cache and shared rate limits, as `redis://host:6379/0` (`rediss://` with "
            "TLS, `unix:///path` for a socket). It overrides `cache.type` and `cache.redis`. Unset: those settings "
            "apply.", secret=True),
    Setting("SWITCHYARD_WORKER", "worker", "true", parse.flag,
            "Whether `up` also sends orders to the venues. `false`: it only accepts orders, and separate `worker` "
            "processes send them."),
    Setting("SWITCHYARD_QUEUE_CAPACITY", "queue_capacity", "10000", parse.whole(1, 1_000_000),
            "Number of changes that may wait for the journal. Beyond it, requests get 503 `QUEUE_REJECT`."),
    Setting("SWITCHYARD_LOG_LEVEL", "log_level", "info", parse.choice("debug", "info", "warning", "error"),
            "Lowest level that is logged: `debug`, `info`, `warning` or `error`."),
    Setting("SWITCHYARD_LOG_FORMAT", "log_format", "text", parse.choice("text", "json"),
            "Format of log lines: `text`, or `json` for log collectors."),
    Setting("SWITCHYARD_JOURNAL_KEY", "journal_key", None, parse.text,
            "Key that signs the journal's head, so that a truncated or rewritten audit file is detected. At least 32 "
            "bytes. Unset: a random key is created in the data folder.", secret=True),
    Setting("JWT_HS256_SECRET", "jwt_secret", None, parse.text,
            "Secret with which bearer tokens are signed (HS256). At least 32 bytes. Unset: a random secret is created "
            "in the data folder.", secret=True),
    Setting("SWITCHYARD_JWT_AUDIENCE", "jwt_audience", None, parse.text,
            "Required `aud` claim of tokens. Unset: `aud` is not checked."),
    Setting("SWITCHYARD_JWT_ISSUER", "jwt_issuer", None, parse.text,
            "Required `iss` claim of tokens. Unset: `iss` is not checked."),
    Setting("SWITCHYARD_REVOKED_TOKENS", "revoked_tokens", None, Path,
            "File with the `jti` claims of revoked tokens, one on each line; `#` begins a comment. At most 10,000 ids and "
            "1 MiB. Gateways and back offices read it again within a second of a change; while the newest list cannot be "
            "read they keep the one before it and `revoked_tokens_up` is 0. A file that is set must exist at the start. "
            "Unset: `revoked_tokens` in the data folder, if it exists."),
    Setting("IDEMPOTENCY_TTL_SEC", "idempotency_ttl", "86400", parse.seconds(1, 31_536_000),
            "`/orders`: seconds for which an idempotency key is kept after its first request; 24 hours by default. A "
            "key is never deleted before its order has ended."),
    Setting("IDEMPOTENCY_DERIVE", "idempotency_derive", "false", parse.accounts,
            "`/orders`: accounts whose requests without `Idempotency-Key` get a key derived from the order: `true` "
            "(all), `false` (none), or account ids separated by commas. A single request can ask for it with "
            "`Idempotency-Derive: true`."),
    Setting("IDEMPO_SECRET", "idempotency_secret", None, parse.text,
            "Secret that makes derived keys an HMAC-SHA256, which others cannot predict. Clients that derive keys "
            "themselves need the same secret. At least 32 bytes. Unset: plain SHA-256.", secret=True),
    Setting("DO_DEFAULT_ACCOUNT", "do_default_account", "do", parse.account,
            "`/do/order`: account of requests without a token."),
    Setting("DO_REQUIRE_TOKEN", "do_requires_token", None, parse.flag,
            "`/do/order`: whether a request without a token is rejected with 401. `false`: it uses `DO_DEFAULT_ACCOUNT`, "
            "from any machine that reaches the gateway directly. Unset: it uses that account only if the database is "
            "SQLite, this process sends the orders itself, every venue is a paper exchange, the gateway listens on this "
            "machine's loopback address and the client is on this machine. A request that shows any sign of a proxy "
            "always needs a token."),
    Setting("DO_RATE_PER_MIN", "do_rate_per_minute", "60", parse.whole(1, 1_000_000),
            "`/do/order`: requests per minute and client. The client is the account of the token, else the IP address. "
            "Further requests get 429."),
    Setting("DO_RISK_CAPITAL", "do_risk_capital", "1000000", parse.amount,
            "`/do/order`: capital of an account, in the currency of its prices. It is added to the high-water mark of "
            "the realised P&L to get the base of the `max_dd` ratio. The default is the size of a demo account: with it, "
            "`max_dd` 0.1 rejects orders after a loss of 100,000. Set it to your own capital. With `0`, a loss without "
            "an earlier gain is an infinite drawdown and violates any `max_dd`."),
    Setting("DO_IDEMPOTENCY_TTL_SEC", "do_key_ttl", "172800", parse.seconds(1, 31_536_000),
            "`/do/order`: seconds for which an idempotency key is kept after its first request; 48 hours by default. A "
            "key is never deleted before its order has ended."),
    Setting("GATEWAY_AUDIT_PATH", "audit_path", None, Path,
            "Path of the audit file, which is created with mode 0600. Unset: `gateway/audit.log` in the data folder."),
    Setting("GATEWAY_METRICS_TOKEN", "metrics_token", None, parse.text,
            "Token that `/metrics` requires in the header `X-Metrics-Token`. Unset: `/metrics` requires none.",
            secret=True),
    Setting("SSE_BUFFER_SIZE", "sse_buffer_size", "1000", parse.whole(1, 1_000_000),
            "Number of recent stream messages kept in memory. A stream that resumes within them causes no database "
            "read."),
    Setting("SSE_KEEPALIVE_SEC", "sse_keepalive", "15", parse.seconds(0.1, 3600),
            "Seconds without a message after which a stream sends a keepalive comment. The default is shorter than the "
            "idle time-out of common proxies."),
    Setting("SSE_DISPATCH_QUEUE_CAPACITY", "sse_queue_capacity", "10000", parse.whole(1, 1_000_000),
            "Number of messages that may wait for one stream reader. A reader that is slower is disconnected; it can "
            "resume with `Last-Event-ID`."),
    Setting("SOR_VENUES", "venue_names", "sim", parse.venue_names,
            "Venue names (letters, digits, `_`), separated by commas. Each venue has its own settings, see 'Per venue'."),
    Setting("SOR_DEFAULT_VENUE", "default_route", None, parse.route,
            "Venue for symbols without a route, or a route as in `SOR_SYMBOL_ROUTES`. Unset: the first of `SOR_VENUES`."),
    Setting("SOR_SYMBOL_ROUTES", "symbol_routes", "", parse.routes,
            "Route of each symbol, such as `BTC=simA,ETH=simA|simB,SOL=best`. `simA`: always this venue. `simA|simB`: "
            "simA, or simB while the circuit breaker of simA is open; orders that were never sent move too. `best`: for "
            "each order the venue with the best price, size, reject rate and latency of all venues, `best:simA|simB` of "
            "these; they move as well."),
    Setting("SOR_ACCOUNT_ROUTES", "account_routes", "", parse.account_routes,
            "Route of an account, such as `desk-1=acornA,desk-2=acornB,desk-2/BTC=simA`: of all its orders, or of those in one "
            "symbol. It goes before the routes of symbols. For accounts that have credentials of their own at a broker, each "
            "of which is a venue here."),
    Setting("SWITCHYARD_UNLISTED_SYMBOLS", "unlisted_symbols", "reject", parse.choice("reject", "allow"),
            "`/orders`: what happens to a symbol that is not in the instrument catalogue: `reject` answers 422 "
            "`UNKNOWN_SYMBOL`, `allow` accepts it with step 1 and tick 1. `/do/order` takes listed instruments only."),
    Setting("SWITCHYARD_QUOTE_AGE_MAX_SEC", "quote_age_max", "5", parse.seconds(0.1, 3600),
            "Age, in seconds, up to which a quote counts; an older one is treated as no quote. The age is measured on the "
            "clock of the quote's source and carried on by the monotonic clock."),
    Setting("OUTBOX_BATCH_SIZE", "outbox_batch_size", "32", parse.whole(1, 1000),
            "Sends per batch. A worker has at most `OUTBOX_BATCH_SIZE` × `OUTBOX_PARALLELISM` sends in flight."),
    Setting("OUTBOX_PARALLELISM", "outbox_parallelism", "4", parse.whole(1, 64),
            "Batches in flight at the same time."),
    Setting("OUTBOX_RETRY_MAX", "outbox_retry_max", "8", parse.whole(0, 1000),
            "Retries after the first attempt. After the last one an order that was never sent is rejected "
            "(`RETRY_EXHAUSTED`, outbox row `dead`), and an order in doubt stays in doubt. An order that is not sent for "
            "as long as the retries take after its acceptance (2, 4 … 256 s and a tenth for jitter: 561 s by default) "
            "ends in the same way, also if its venue is down and no attempt is made."),
    Setting("SWITCHYARD_UNSENT_WAIT_SEC", "unsent_wait", None, parse.seconds(5, 30 * 86_400),
            "Seconds after its acceptance for which an order that cannot be sent waits, in place of the time that "
            "`OUTBOX_RETRY_MAX` retries take. It is sent again as often as the backoff allows in that time. A GTC order "
            "may then be sent this late, at the price that it was placed with. Unset: as long as the retries take."),
    Setting("OUTBOX_STUCK_THRESHOLD_MIN", "outbox_stuck_after", "10", parse.minutes(0.01, 1440),
            "Minutes after which a send without an outcome counts as in doubt (`uncertain`)."),
    Setting("OUTBOX_IDLE_SLEEP_MS", "outbox_idle_sleep_ms", "200", parse.whole(1, 60_000),
            "Longest pause, in milliseconds, after which an idle worker checks for new outbox rows. An order accepted "
            "in the same process wakes the worker at once."),
)  # fmt: skip


class VenueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one venue; `VENUE_SETTINGS` documents each field."""

    name: VenueName
    url: Secret
    """Secret, because it may contain credentials."""
    stated: frozenset[str]
    """The fields that were set; the others have their defaults."""
    files: Mapping[str, Path]
    """The files that secrets were read from, by field; they are read again while the process runs."""
    options: Mapping[str, str]
    secrets: SecretNames
    token: Secret | None
    token_header: str
    accounts: Mapping[AccountId, str]
    symbols: Mapping[str, str]
    dedupe: parse.Dedupe
    lookup: Literal["none", "open", "all"]
    window: timedelta | None
    request_expiry: bool
    sequence_proof: bool
    sessions: Literal["shared", "exclusive"]
    cancel_all: bool
    amend: Literal["in_place", "cancel_replace", "none"]
    reduce_only: bool
    post_only: bool
    display_qty: bool
    cancel_all_after: int | None
    disarm_on_stop: bool
    accept_cancel_on_disconnect: bool
    dedupe_ttl: timedelta
    lookup_keeps: timedelta | None
    hop_hold: timedelta
    final_errors: frozenset[tuple[int, str | None]]
    idempotency_header: bool
    reuse_connections: bool
    exec_id_scope: Literal["venue", "symbol", "order"]
    order_types: frozenset[OrderType]
    times_in_force: frozenset[TimeInForce]
    sweep: timedelta
    quotes: str
    quotes_poll: timedelta
    quotes_start: datetime | None
    breaker_faults: int
    breaker_pause: timedelta
    rate_per_sec: Decimal | None
    burst: int | None
    fee_percent: Decimal | None
    delay: timedelta
    partial_steps: int
    reject_all: bool
    displayed_qty: Decimal | None

    @property
    def kind(self) -> str:
        """The kind of the venue: `http` for a broker that speaks our own protocol."""
        scheme = self.url.partition(":")[0]
        return "http" if scheme == "https" else scheme

    @property
    def quotes_of(self) -> VenueName | None:
        """The other venue whose quotes this one takes."""
        scheme, _, name = self.quotes.partition(":")
        return VenueName(name) if scheme == "venue" and name else None


# Per venue: the environment variable ends with the venue's name in capitals.
VENUE_SETTINGS: tuple[Setting, ...] = (
    Setting("VENUE_URL_", "url", "paper:", parse.venue_url,
            "`paper:` is the paper exchange in this process, `http://host:port` a broker that speaks Switchyard's own "
            "protocol, `KIND:` or `KIND:https://host` a venue whose adapter is installed. For benchmarks, `null:` is an "
            "in-memory venue that fills every order and `null:resting` one that fills none. It may contain credentials, as "
            "`https://user:password@host`; they are sent as HTTP Basic authentication.", secret=True),
    Setting("VENUE_OPTIONS_", "options", "", parse.option_values,
            "Options of the venue's adapter, as `name=value` separated by commas; `switchyard venues describe KIND` lists "
            "them."),
    Setting("VENUE_SECRETS_", "secrets", "", parse.secret_values,
            "Keys of the venue's adapter, as `name=value`, each in a line of its own, or separated by commas. Among lines, `#` "
            "begins a comment, and indented lines below `name=` are its value. A file is read again when it changes.",
            secret=True),
    Setting("VENUE_TOKEN_", "token", None, parse.header_value,
            "Broker: token that is sent with every request, as `Authorization: Bearer TOKEN` or in the header of "
            "`VENUE_TOKEN_HEADER_`. Unset: none. A file is read again when it changes.", secret=True),
    Setting("VENUE_TOKEN_HEADER_", "token_header", "Authorization", parse.header_name,
            "Broker: header that carries `VENUE_TOKEN_`. In another header than `Authorization` the token is sent as it is, "
            "such as `X-Api-Key: TOKEN`."),
    Setting("VENUE_ACCOUNTS_", "accounts", "", parse.account_names,
            "Broker: its account for each of ours, such as `desk-1=A-17,desk-2=A-18`; it is sent with every order. Orders of an "
            "account that is not listed are rejected. Unset: no account is sent."),
    Setting("VENUE_SYMBOLS_", "symbols", "", parse.symbol_names,
            "Broker: its name for each of our symbols, such as `USDJPY=USD/JPY,BTC=XBT`, in orders, answers and quotes. A "
            "symbol that is not listed has the same name there."),
    Setting("VENUE_DEDUPE_", "dedupe", "while_open", parse.dedupe,
            "Broker: how long it recognises a repeated client order id: `permanent`, `while_open` (while the order is "
            "open), `ttl` (see `VENUE_DEDUPE_TTL_SEC_`) or `none`. After an ambiguous send, `permanent` allows a resend at "
            "once, `while_open` and `ttl` require a lookup first, and with `none` an order is never sent "
            "again automatically. A value that promises more than the broker does can execute an order twice."),
    Setting("VENUE_LOOKUP_", "lookup", "all", parse.choice("none", "open", "all"),
            "Broker: which orders it finds by client order id: `none`, `open` (open orders only) or `all`. Only with "
            "`all` is an order that the broker reports as absent sent again."),
    Setting("VENUE_WINDOW_SEC_", "window", "", parse.optional(parse.seconds(0, 86_400)),
            "Broker: seconds after a send within which the order may still appear there. Without it, an order in doubt "
            "is never sent again automatically: it waits for evidence or for an operator."),
    Setting("VENUE_CANCEL_ALL_", "cancel_all", "false", parse.flag,
            "Broker: whether it cancels all open orders with one request, for a kill of everything or of this venue. "
            "Set it only if nobody else trades under the same credentials: their orders would be cancelled too."),
    Setting("VENUE_CANCEL_ALL_AFTER_", "cancel_all_after", "", parse.optional(parse.whole(10, 86_400)),
            "Seconds after which the venue cancels all open orders under our credentials if no process renews the time (a "
            "dead man's switch); every process that sends to it does so three times as often. Only for an adapter that "
            "declares `cancel_all_after`. Unset: it is not used. Orders of others under the same credentials are cancelled "
            "too."),
    Setting("VENUE_DISARM_ON_STOP_", "disarm_on_stop", "false", parse.flag,
            "With `VENUE_CANCEL_ALL_AFTER_`: whether a process that is stopped in an orderly way switches it off, so that open "
            "orders stay. `false`: they are cancelled unless a process renews the time before it is over."),
    Setting("VENUE_ACCEPT_CANCEL_ON_DISCONNECT_", "accept_cancel_on_disconnect", "false", parse.flag,
            "Accepts that the venue cancels open orders when a connection to it ends, also when Switchyard restarts. Without "
            "it, an adapter that declares `cancel_on_disconnect` stops the start."),
    Setting("VENUE_AMEND_", "amend", "none", parse.choice("in_place", "cancel_replace", "none"),
            "Broker: how it amends an open order: `in_place`, `cancel_replace` (a new order takes the place of the old one) "
            "or `none` (amends are rejected with 422). Only if it rejects an amend that does not name the order's last id, "
            "and finds an order by the id of its last amend."),
    Setting("VENUE_REDUCE_ONLY_", "reduce_only", "false", parse.flag,
            "Broker: whether it has reduce-only orders. `true` adds `reduce_only` to orders that close a position or ask for "
            "`reduceOnly`; without it, the latter are rejected with `UNSUPPORTED_BY_VENUE`. The broker then looks at the "
            "position under its credentials: set it only if that is the position of one account."),
    Setting("VENUE_POST_ONLY_", "post_only", "false", parse.flag,
            "Broker: whether it rejects or cancels an order with `post_only` that would trade when it arrives. Without it, "
            "orders with `postOnly` are rejected with `UNSUPPORTED_BY_VENUE`."),
    Setting("VENUE_DISPLAY_QTY_", "display_qty", "false", parse.flag,
            "Broker: whether it has iceberg orders, of which it shows `display_qty` to the market. Without it, orders with "
            "`displayQty` are rejected with `UNSUPPORTED_BY_VENUE`."),
    Setting("VENUE_REQUEST_EXPIRY_", "request_expiry", "false", parse.flag,
            "Broker: whether it rejects an order that arrives after the `expires_at` of the request. `true` adds "
            "`expires_at` to every order: the time of the attempt on the broker's clock plus `VENUE_WINDOW_SEC_`."),
    Setting("VENUE_SEQUENCE_PROOF_", "sequence_proof", "false", parse.flag,
            "Whether the adapter's proof that the venue never received a message settles a doubt at once, if its descriptor "
            "has it. `false` turns it off: a doubt then needs its waiting time."),
    Setting("VENUE_SESSIONS_", "sessions", "shared", parse.choice("shared", "exclusive"),
            "Broker: `exclusive` lets one worker at a time use it, as for a venue that admits one session under our "
            "credentials; the others stand by."),
    Setting("VENUE_DEDUPE_TTL_SEC_", "dedupe_ttl", "60", parse.seconds(0, 31_536_000),
            "Broker: seconds for which it recognises a repeated id, with `VENUE_DEDUPE_` `ttl`. Within this time, less a "
            "tenth and the time that a send can take, the process that made the first attempt resends without a lookup."),
    Setting("VENUE_LOOKUP_KEEPS_SEC_", "lookup_keeps", "", parse.optional(parse.seconds(1, 315_360_000)),
            "Broker: seconds after its first send for which it finds an order that has ended. An order in doubt that is older, "
            "less a tenth, is not absent because it is not found: a report or a person decides. Unset: for ever."),
    Setting("VENUE_HOP_HOLD_SEC_", "hop_hold", "0", parse.seconds(0, 86_400),
            "Broker: longest time, in seconds, that a proxy on the way may hold a request and still deliver it. It is "
            "added to `VENUE_WINDOW_SEC_` wherever an absent order is judged."),
    Setting("VENUE_FINAL_ERRORS_", "final_errors", "400,401,403,422", parse.final_errors,
            "Broker: the errors that its documents call final, as `STATUS` or `STATUS:CODE`, separated by commas, such as "
            "`401,403,400:INVALID_QTY`. `401` and `403` are about the credential, which is paused then, unless their code is "
            "named too. With one of these and a readable error body an order is rejected; after every "
            "other response it is in doubt."),
    Setting("VENUE_IDEMPOTENCY_HEADER_", "idempotency_header", "true", parse.flag,
            "Broker: whether requests carry the header `Idempotency-Key`. `false` for a broker that does not document it."),
    Setting("VENUE_REUSE_CONNECTIONS_", "reuse_connections", "false", parse.flag,
            "Broker: whether orders and cancels follow each other on one connection, instead of each on one of its own, "
            "opened ahead of it. `true` needs `VENUE_DEDUPE_` `permanent`, and a broker and proxies that never send a "
            "response that nobody asked for: it would be taken for the answer to the next order, and could end that."),
    Setting("VENUE_EXEC_ID_SCOPE_", "exec_id_scope", "venue", parse.choice("venue", "symbol", "order"),
            "Broker: scope within which its execution ids are unique: `venue`, `symbol` or `order`. With too wide a "
            "scope, fills are dropped as duplicates. Do not change it while orders are open."),
    Setting("VENUE_ORDER_TYPES_", "order_types", "LIMIT,MARKET", parse.words(*ORDER_TYPES),
            "Broker: the order types that it has itself: `LIMIT`, `MARKET`, `STOP`, `STOP_LIMIT`, separated by commas. An "
            "order of another type is rejected with `UNSUPPORTED_BY_VENUE`. The paper exchange has all of them."),
    Setting("VENUE_TIMES_IN_FORCE_", "times_in_force", "IOC,FOK,GTC", parse.words(*TIMES_IN_FORCE),
            "Broker: the times in force that it has itself: `IOC`, `FOK`, `GTC`, `DAY`, `GTD`, separated by commas. An order "
            "with another one is rejected with `UNSUPPORTED_BY_VENUE`. The paper exchange has all of them."),
    Setting("VENUE_SWEEP_SEC_", "sweep", "30", parse.seconds(0, 86_400),
            "Seconds between two comparisons of the open orders with those of the venue, which find fills whose report "
            "was lost. `0`: no comparison."),
    Setting("VENUE_QUOTES_", "quotes", "venue", parse.quote_source,
            "Source of the venue's quotes: `venue` (the paper exchange's market, or the broker's `GET /quotes`), "
            "`file:PATH` (a recorded file, `.csv` or `.jsonl`, which is replayed) or `none`. The paper exchange also takes "
            "`venue:NAME`: it shows the quotes of that venue, and fills at them."),
    Setting("VENUE_QUOTES_POLL_SEC_", "quotes_poll", "1", parse.seconds(0.1, 3600),
            "Broker: seconds between two requests for quotes. It must be less than `SWITCHYARD_QUOTE_AGE_MAX_SEC`."),
    Setting("VENUE_QUOTES_START_", "quotes_start", "", parse.optional(parse.instant),
            "Recorded file: time at which its first quote is current, such as `2026-01-05T09:00:00Z`; the others follow "
            "at their recorded distances. Set it if several processes replay a file, so that they agree. Unset: the "
            "start of the process."),
    Setting("VENUE_BREAKER_FAULTS_", "breaker_faults", "5", parse.whole(0, 1_000_000),
            "Faults in a row (no connection, no answer, 5xx, 429; not rejections) after which the circuit breaker opens and "
            "no orders or cancels are sent to the venue until it answers probes again. `0`: it never opens."),
    Setting("VENUE_BREAKER_PAUSE_SEC_", "breaker_pause", "2", parse.seconds(0.1, 3600),
            "Seconds after which an open circuit breaker lets the venue's answers to probes close it. It doubles, up to "
            "60 s, each time the first order after a pause fails."),
    Setting("VENUE_RATE_PER_SEC_", "rate_per_sec", "", parse.optional(parse.limit),
            "Orders and cancels per second that are sent to the venue, by all workers together where Redis is configured, "
            "else by each one. Unset: no limit. With it, an order waits in the outbox for its turn, so its first attempt "
            "is a commit of its own."),
    Setting("VENUE_BURST_", "burst", "", parse.optional(parse.whole(1, 1_000_000)),
            "Orders and cancels that may be sent at once after a pause, with `VENUE_RATE_PER_SEC_`. Unset: the rate, "
            "rounded up."),
    Setting("VENUE_FEE_PERCENT_", "fee_percent", "", parse.optional(parse.percent),
            "The venue's fee in percent of the notional, for routes by quality. Unset: that of the instrument."),
    Setting("EXCHANGE_SIM_DELAY_MS_", "delay", "0", lambda value: timedelta(milliseconds=parse.whole(0, 3_600_000)(value)),
            "Paper exchange: delay before each execution report, in milliseconds."),
    Setting("EXCHANGE_SIM_PARTIAL_STEPS_", "partial_steps", "1", parse.whole(1, 1000),
            "Paper exchange: number of partial fills per order."),
    Setting("EXCHANGE_SIM_REJECT_ALL_", "reject_all", "false", parse.flag,
            "Paper exchange: whether it rejects every order."),
    Setting("EXCHANGE_SIM_DISPLAYED_QTY_", "displayed_qty", "", parse.optional(parse.limit),
            "Paper exchange: quantity that its market displays on each side of a symbol, anew every 0.2 s. Orders share it: "
            "an IOC order gets what is left and its rest expires, a FOK order that it does not cover expires. Unset: any "
            "order is filled whole."),
)  # fmt: skip


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process; `SETTINGS` documents each field."""

    data_dir: Path
    state_dir: Path
    host: str
    port: int
    allowed_hosts: frozenset[str]
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    connections_max: int
    connections_per_address_max: int
    streams_per_account_max: int
    metrics_port: int | None
    backoffice: bool
    backoffice_url: str | None
    backoffice_port: int
    dashboard: bool
    dashboard_books_url: str | None
    reconcile: bool
    reconcile_interval: timedelta
    reconcile_quiet: timedelta
    database_url: Secret | None
    redis_url: Secret | None
    worker: bool
    queue_capacity: int
    log_level: str
    log_format: str
    journal_key: Secret | None
    jwt_secret: Secret | None
    jwt_audience: str | None
    jwt_issuer: str | None
    revoked_tokens: Path | None
    idempotency_ttl: timedelta
    do_default_account: AccountId
    do_requires_token: bool | None
    do_rate_per_minute: int
    do_risk_capital: Decimal
    do_key_ttl: timedelta
    audit_path: Path
    metrics_token: Secret | None
    sse_buffer_size: int
    sse_keepalive: timedelta
    sse_queue_capacity: int
    venue_names: tuple[VenueName, ...]
    default_route: Route
    symbol_routes: Mapping[str, Route]
    account_routes: AccountRoutes
    unlisted_symbols: str
    quote_age_max: timedelta
    outbox_batch_size: int
    outbox_parallelism: int
    outbox_retry_max: int
    unsent_wait: timedelta | None
    outbox_idle_sleep_ms: int
    outbox_stuck_after: timedelta
    venues: tuple[VenueSettings, ...]
    instruments: Mapping[str, Instrument]
    idempotency: IdempotencySettings
    risk: RiskLimits
    kafka: KafkaSettings | None
    """None unless `KAFKA_ENABLE` is true."""
    pdca_api: PdcaApiSettings
    rechecks: RecheckSettings
    tracing: TracingSettings | None
    """None unless a collector is named."""
    unknown_names: tuple[str, ...]
    """Variables with a prefix that other programs use too, and that are not settings."""

    @property
    def sends_elsewhere(self) -> bool:
        """Whether orders may leave this process: a venue is outside of it, or other processes use the same database."""
        return self.database_url is not None or any(venue.kind != "paper" for venue in self.venues)
