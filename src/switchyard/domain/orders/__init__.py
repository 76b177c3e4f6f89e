"""Orders: requests, stored orders, their lifecycle and reasons, outbox rows, keys, amends. Every layer imports it."""
