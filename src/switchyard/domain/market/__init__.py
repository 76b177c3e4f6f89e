"""The market: instruments, quotes, routes, the health of venues. The flow, the venue adapters and the API import it."""
