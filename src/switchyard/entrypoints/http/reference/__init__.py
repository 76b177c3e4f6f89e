"""The page that shows the HTTP contract, and the contract itself. Served by the gateway."""
