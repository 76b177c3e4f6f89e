"""The HTTP API of strategies and rechecks, with tokens of its own. Served on the gateway's port."""
