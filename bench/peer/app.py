"""The peer: a straightforward order API with FastAPI and asyncpg, one transaction per request.

With PEER_WORKER it enqueues a PgQueuer job in that transaction; the worker runs in this process (`inside`) or in one of
its own (`beside`). The job and the log that PgQueuer keeps of it take the place of the outbox row and the event.
"""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import asyncpg
import jwt
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from pydantic import BaseModel, ConfigDict, Field

from bench.peer.worker import JOB, install, work

POOL_SIZE = 20
SECRET = os.environ["JWT_HS256_SECRET"]
WORKER = os.environ.get("PEER_WORKER")

INSERT_KEY = """
    INSERT INTO idempotency (account_id, key, body_digest, order_id) VALUES ($1, $2, $3, $4)
    ON CONFLICT (account_id, key) DO NOTHING RETURNING order_id
"""
FIND_KEY = "SELECT order_id, body_digest FROM idempotency WHERE account_id = $1 AND key = $2"
INSERT_ORDER = """
    INSERT INTO orders (order_id, account_id, symbol, side, type, time_in_force, qty, price, strategy, status)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'ACCEPTED')
"""
INSERT_OUTBOX = "INSERT INTO outbox (order_id) VALUES ($1)"
INSERT_EVENT = "INSERT INTO events (type, account_id, order_id, data) VALUES ('OrderAccepted', $1, $2, $3)"


class OrderRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    symbol: str = Field(min_length=1, max_length=64)
    side: Literal["BUY", "SELL"]
    type: Literal["LIMIT", "MARKET"]
    qty: Decimal = Field(gt=0)
    price: Decimal | None = Field(default=None, gt=0)
    timeInForce: Literal["IOC", "FOK", "GTC"] = "GTC"  # noqa: N815 - the contract's spelling
    strategy: str | None = None


class OrderResponse(BaseModel):
    orderId: str  # noqa: N815 - the contract's spelling
    status: Literal["ACCEPTED"] = "ACCEPTED"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(
        os.environ["PEER_DATABASE_URL"],
        min_size=POOL_SIZE,
        max_size=POOL_SIZE,
        server_settings={"synchronous_commit": "on"},
    ) as pool:
        await pool.execute((Path(__file__).parent / "schema.sql").read_text("utf-8"))
        if WORKER:
            await install(pool)
        app.state.pool = pool
        working = asyncio.create_task(work()) if WORKER == "inside" else None
        yield
        if working is not None:
            working.cancel()


app = FastAPI(lifespan=lifespan)


async def account(authorization: Annotated[str, Header()]) -> str:
    """The account of the bearer token."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise HTTPException(401, "TOKEN_MISSING")
    try:
        claims = jwt.decode(token, SECRET, algorithms=["HS256"], options={"require": ["exp", "accountId"]})
    except jwt.InvalidTokenError as error:
        raise HTTPException(401, "TOKEN_INVALID") from error
    return str(claims["accountId"])


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/orders", status_code=202)
async def place_order(
    request: Request,
    body: OrderRequest,
    account_id: Annotated[str, Depends(account)],
    idempotency_key: Annotated[str, Header(min_length=1, max_length=255)],
) -> OrderResponse:
    """Write the key, the order and what sends it in one transaction; a known key returns its order."""
    order_id = f"ord_{secrets.token_hex(13)}"
    canonical = body.model_dump_json()
    digest = hashlib.sha256(canonical.encode()).digest()
    async with request.app.state.pool.acquire() as connection, connection.transaction():
        is_new = await connection.fetchval(INSERT_KEY, account_id, idempotency_key, digest, order_id)
        if not is_new:
            first = await connection.fetchrow(FIND_KEY, account_id, idempotency_key)
            if first["body_digest"] != digest:
                raise HTTPException(409, "IDEMPOTENCY_CONFLICT")
            return OrderResponse(orderId=first["order_id"])
        await connection.execute(
            INSERT_ORDER,
            order_id,
            account_id,
            body.symbol,
            body.side,
            body.type,
            body.timeInForce,
            body.qty,
            body.price,
            body.strategy,
        )
        if WORKER:
            await Queries(AsyncpgDriver(connection)).enqueue(JOB, order_id.encode())
        else:
            await connection.execute(INSERT_OUTBOX, order_id)
            await connection.execute(INSERT_EVENT, account_id, order_id, canonical)
    return OrderResponse(orderId=order_id)
