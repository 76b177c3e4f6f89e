// What the page reads of each answer. `get` drops every other member, so nothing is read that is not named here, and a test
// compares the names with the contract. The object is plain JSON for that test. "*": members with any name.
export const READS = {
  "/health/ready": ["status", "checks[].check", "checks[].status", "checks[].detail"],
  "/venues": ["venues[].venue", "venues[].kind", "venues[].state", "venues[].reason", "venues[].latencyMs", "venues[].rejectRate"],
  "/admin/kills": [
    "kills[].killId", "kills[].active", "kills[].everything", "kills[].account", "kills[].strategy", "kills[].venue",
    "kills[].symbol", "kills[].mode", "kills[].by", "kills[].reason", "kills[].setAt", "nextCursor"
  ],
  "/orders": [
    "accountId", "nextCursor", "orders[].orderId", "orders[].acceptedAt", "orders[].side", "orders[].symbol", "orders[].type",
    "orders[].timeInForce", "orders[].qty", "orders[].price", "orders[].stopPrice", "orders[].filledQty", "orders[].avgPrice",
    "orders[].status", "orders[].venue", "orders[].strategy", "orders[].clientOrderId", "orders[].reason", "orders[].version"
  ],
  "/orders/{orderId}": [
    "orderId", "accountId", "clientOrderId", "symbol", "side", "type", "timeInForce", "qty", "price", "stopPrice", "status",
    "filledQty", "remainingQty", "avgPrice", "venue", "venueOrderId", "reason", "strategy", "tags[]", "acceptedAt", "updatedAt",
    "version", "expiresAt", "reduceOnly", "postOnly", "displayQty", "pendingQty"
  ],
  "/orders/{orderId}/explain": ["steps[].seq", "steps[].at", "steps[].kind", "steps[].text", "hasMore"],
  "/orders/{orderId}/events": ["events[].seq", "events[].at", "events[].type", "events[].data", "nextCursor"],
  "/positions": [
    "accountId", "positions[].symbol", "positions[].qty", "positions[].averagePrice", "positions[].costBasis",
    "positions[].realisedPnl", "positions[].currency", "positions[].updatedAt", "nextCursor"
  ],
  "/dashboard/books/positions": [
    "accountId", "positions[].symbol", "positions[].qty", "positions[].averagePrice", "positions[].costBasis",
    "positions[].realisedPnl", "positions[].currency", "positions[].updatedAt", "nextCursor"
  ],
  "/dashboard/books/balances": [
    "balances[].currency", "balances[].cash", "balances[].trading", "balances[].fees", "balances[].capital",
    "balances[].adjustments", "balances[].conversion", "balances[].rounding", "nextCursor"
  ],
  "/dashboard/books/stats": ["lastEventAt"],
  "/dashboard/books/pnl": [
    "from", "to", "rows[].name", "rows[].currency", "rows[].realised", "rows[].fees", "rows[].net", "rows[].fills",
    "rows[].unrealised", "rows[].unrealisedReason", "nextCursor"
  ],
  "/dashboard/books/reconcile": [
    "comparedAt", "truncated", "notCompared[].scope", "notCompared[].reason", "breaks[].breakId", "breaks[].kind",
    "breaks[].class", "breaks[].state", "breaks[].accountId", "breaks[].venue", "breaks[].amount", "breaks[].unit", "breaks[].here",
    "breaks[].there", "breaks[].firstSeenAt"
  ],
  "/dashboard/books/breaks": [
    "nextCursor", "breaks[].breakId", "breaks[].kind", "breaks[].class", "breaks[].state", "breaks[].accountId", "breaks[].venue",
    "breaks[].amount", "breaks[].unit", "breaks[].here", "breaks[].there", "breaks[].firstSeenAt"
  ],
  "/gui/strategies": [
    "items[].id", "items[].account", "items[].owner", "items[].tags[]", "items[].health", "items[].health_reasons[]", "items[].last_checked_at",
    "page", "page_size", "total"
  ],
  "/gui/strategies/{strategy_id}": [
    "id", "account", "owner", "tags[]", "capital.amount", "capital.currency", "health", "health_reasons[]", "last_checked_at", "last_request_id", "metrics.*.value",
    "metrics.*.unit", "metrics.*.reason", "thresholds.*.degraded", "thresholds.*.unhealthy"
  ],
  "/pdca/downloads/{request_id}/{strategy_id}/{name}": ["url"],
  "/stream ready": ["accountId"],
  "/stream order_update": [
    "orderId", "acceptedAt", "side", "symbol", "type", "timeInForce", "qty", "price", "stopPrice", "filledQty", "avgPrice", "status",
    "venue", "strategy", "clientOrderId", "reason", "version"
  ],
  "/stream resync_required": [],
  "/stream token_expired": ["message"],
  "/stream server_closing": []
};
