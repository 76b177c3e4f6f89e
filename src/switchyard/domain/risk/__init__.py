"""Pre-trade risk: pure rules from an order and what is known about it to a violation or none."""
