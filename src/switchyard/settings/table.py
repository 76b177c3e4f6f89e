"""The table of all settings, and the types they come in."""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal

import msgspec

from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.instruments import Instrument
from switchyard.settings import parse
from switchyard.settings.idempotency import IdempotencySettings
from switchyard.settings.setting import Secret, Setting

SETTINGS: tuple[Setting, ...] = (
    Setting("SWITCHYARD_DATA_DIR", "data_dir", "var", Path, "Folder of the database, secrets and books."),
    Setting("SWITCHYARD_HOST", "host", "127.0.0.1", parse.text, "Address that the gateway, or a worker's metrics, listens on."),
    Setting("SWITCHYARD_PORT", "port", "8081", parse.whole(0, 65535), "Port that the gateway listens on; 0 picks one."),
    Setting("SWITCHYARD_METRICS_PORT", "metrics_port", None, parse.whole(0, 65535),
            "Port on which a `worker` serves `/metrics` and `/health`; 0 picks one; unset: none."),
    Setting("SWITCHYARD_DATABASE_URL", "database_url", None, parse.database_url, "`postgresql://…`; unset: SQLite in the data folder."),
    Setting("SWITCHYARD_REDIS_URL", "redis_url", None, parse.redis_url,
            "`redis://…`, Redis for the idempotency cache, over `cache.type` and `cache.redis`; unset: what those say.", secret=True),
    Setting("SWITCHYARD_WORKER", "worker", "true", parse.flag, "Whether `up` also sends orders, or only accepts them."),
    Setting("SWITCHYARD_QUEUE_CAPACITY", "queue_capacity", "10000", parse.whole(1, 1_000_000),
            "Changes that may wait for the journal; beyond it a request gets 503 `QUEUE_REJECT`."),
    Setting("SWITCHYARD_LOG_LEVEL", "log_level", "info", parse.choice("debug", "info", "warning", "error"), "Least level that is logged."),
    Setting("SWITCHYARD_LOG_FORMAT", "log_format", "text", parse.choice("text", "json"), "How log lines look."),
    Setting("SWITCHYARD_JOURNAL_KEY", "journal_key", None, parse.text,
            "Key of the journal's signed head; unset: a random one under the data folder.", secret=True),
    Setting("JWT_HS256_SECRET", "jwt_secret", None, parse.text,
            "Secret that tokens are signed with; unset: a random one under the data folder.", secret=True),
    Setting("SWITCHYARD_JWT_AUDIENCE", "jwt_audience", None, parse.text, "Required `aud` of tokens; unset: not looked at."),
    Setting("SWITCHYARD_JWT_ISSUER", "jwt_issuer", None, parse.text, "Required `iss` of tokens; unset: not looked at."),
    Setting("IDEMPOTENCY_TTL_SEC", "idempotency_ttl", "86400", parse.seconds(1, 31_536_000), "How long a key is remembered."),
    Setting("IDEMPOTENCY_DERIVE", "idempotency_derive", "false", parse.accounts,
            "Whether `/orders` without a key gets a derived one: `true`, `false`, or accounts separated by commas."),
    Setting("IDEMPO_SECRET", "idempotency_secret", None, parse.text,
            "Shared with those who derive keys themselves: makes derived keys an HMAC that nobody else can predict.", secret=True),
    Setting("DO_DEFAULT_ACCOUNT", "do_default_account", "do", parse.account, "`/do/order`: the account of requests without a token."),
    Setting("DO_REQUIRE_TOKEN", "do_requires_token", "false", parse.flag, "`/do/order`: whether a request needs a token."),
    Setting("DO_RATE_PER_MIN", "do_rate_per_minute", "60", parse.whole(1, 1_000_000),
            "`/do/order`: requests per minute and client (a token's account, else the address); beyond it 429."),
    Setting("DO_RISK_CAPITAL", "do_risk_capital", "0", parse.amount,
            "`/do/order`: what `max_dd` adds to an account's best result before it takes the ratio; with 0, a first loss without an earlier gain is infinitely deep."),
    Setting("DO_IDEMPOTENCY_TTL_SEC", "do_key_ttl", "172800", parse.seconds(1, 31_536_000), "`/do/order`: how long a key is remembered."),
    Setting("GATEWAY_AUDIT_PATH", "audit_path", None, Path, "The audit file; unset: `gateway/audit.log` in the data folder."),
    Setting("GATEWAY_METRICS_TOKEN", "metrics_token", None, parse.text, "When set, `/metrics` asks for it in `X-Metrics-Token`.", secret=True),
    Setting("SSE_BUFFER_SIZE", "sse_buffer_size", "1000", parse.whole(1, 1_000_000), "Newest messages kept in memory for a resume."),
    Setting("SSE_KEEPALIVE_SEC", "sse_keepalive", "15", parse.seconds(0.1, 3600), "Silence after which a keepalive comment is sent."),
    Setting("SSE_DISPATCH_QUEUE_CAPACITY", "sse_queue_capacity", "10000", parse.whole(1, 1_000_000),
            "Messages that one reader may lag behind before it is disconnected."),
    Setting("SOR_VENUES", "venue_names", "sim", parse.venue_names, "The venues, separated by commas."),
    Setting("SOR_DEFAULT_VENUE", "default_venue", None, VenueName, "Venue of symbols without a route; unset: the first."),
    Setting("SOR_SYMBOL_ROUTES", "symbol_routes", "", parse.routes, "Routes such as `BTC=simA,ETH=simB`."),
    Setting("OUTBOX_BATCH_SIZE", "outbox_batch_size", "32", parse.whole(1, 1000), "Sends of one batch; times the parallelism, the sends that may be under way."),
    Setting("OUTBOX_PARALLELISM", "outbox_parallelism", "4", parse.whole(1, 64), "Batches that may be under way at once."),
    Setting("OUTBOX_RETRY_MAX", "outbox_retry_max", "8", parse.whole(0, 1000), "Attempts after the first before a row is dead."),
    Setting("OUTBOX_STUCK_THRESHOLD_MIN", "outbox_stuck_after", "10", lambda value: parse.seconds(0.01, 1440)(value) * 60,
            "Minutes after which a send without an outcome is in doubt."),
    Setting("OUTBOX_IDLE_SLEEP_MS", "outbox_idle_sleep_ms", "200", parse.whole(1, 60_000), "How often an idle worker looks for work, at the least."),
)  # fmt: skip


class VenueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one venue is reached and, if it is a simulated one, how it behaves."""

    name: VenueName
    url: str
    dedupe: Literal["forever", "open_only", "ttl", "none"]
    lookup: Literal["none", "open", "all"]
    window: timedelta
    request_expiry: bool
    dedupe_ttl: timedelta
    exec_id_scope: Literal["venue", "symbol", "order"]
    sweep: timedelta
    delay: timedelta
    partial_steps: int
    reject_all: bool


# Per venue, with the venue's name in capitals behind it.
VENUE_SETTINGS: tuple[Setting, ...] = (
    Setting("VENUE_URL_", "url", "paper:", parse.venue_url,
            "`paper:` the paper exchange; `http://host:port` a broker; `null:` in memory, fills everything, for benchmarks; `null:resting` the same, fills nothing."),
    Setting("VENUE_DEDUPE_", "dedupe", "open_only", parse.choice("forever", "open_only", "ttl", "none"),
            "Broker: for how long it recognises a repeated client order id; `none`: neither that nor lookup."),
    Setting("VENUE_LOOKUP_", "lookup", "all", parse.choice("none", "open", "all"),
            "Broker: which orders it finds by client order id: none, those still open, or ended ones too; `none` with `VENUE_DEDUPE_` `none`."),
    Setting("VENUE_WINDOW_SEC_", "window", "10", parse.seconds(0, 86_400),
            "Broker: how long after a send an order may still turn up."),
    Setting("VENUE_REQUEST_EXPIRY_", "request_expiry", "false", parse.flag,
            "Broker: whether it rejects an order that arrives after its `expires_at`, which is then sent along."),
    Setting("VENUE_DEDUPE_TTL_SEC_", "dedupe_ttl", "60", parse.seconds(0, 31_536_000), "Broker: how long, with `ttl`. Kept for the record: doubt is settled by asking, never by this time."),
    Setting("VENUE_EXEC_ID_SCOPE_", "exec_id_scope", "venue", parse.choice("venue", "symbol", "order"),
            "Broker: within what its execution ids are unique; do not change it while orders are open."),
    Setting("VENUE_SWEEP_SEC_", "sweep", "30", parse.seconds(0, 86_400),
            "How often open orders are compared with what the venue has, in case a report was lost; `0`: never."),
    Setting("EXCHANGE_SIM_DELAY_MS_", "delay", "0", lambda value: timedelta(milliseconds=parse.whole(0, 3_600_000)(value)),
            "Paper exchange: how long each report is held back."),
    Setting("EXCHANGE_SIM_PARTIAL_STEPS_", "partial_steps", "1", parse.whole(1, 1000), "Paper exchange: fills per order."),
    Setting("EXCHANGE_SIM_REJECT_ALL_", "reject_all", "false", parse.flag, "Paper exchange: reject every order."),
)  # fmt: skip


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process; the field texts are in `SETTINGS`."""

    data_dir: Path
    host: str
    port: int
    metrics_port: int | None
    database_url: str | None
    redis_url: Secret | None
    worker: bool
    queue_capacity: int
    log_level: str
    log_format: str
    journal_key: Secret | None
    jwt_secret: Secret | None
    jwt_audience: str | None
    jwt_issuer: str | None
    idempotency_ttl: timedelta
    do_default_account: AccountId
    do_requires_token: bool
    do_rate_per_minute: int
    do_risk_capital: Decimal
    do_key_ttl: timedelta
    audit_path: Path
    metrics_token: Secret | None
    sse_buffer_size: int
    sse_keepalive: timedelta
    sse_queue_capacity: int
    venue_names: tuple[VenueName, ...]
    default_venue: VenueName
    symbol_routes: Mapping[str, VenueName]
    outbox_batch_size: int
    outbox_parallelism: int
    outbox_retry_max: int
    outbox_idle_sleep_ms: int
    outbox_stuck_after: timedelta
    venues: tuple[VenueSettings, ...]
    instruments: Mapping[str, Instrument]
    idempotency: IdempotencySettings
