"""The admission window: how many new orders a process admits. Called by `flow/intake` and by the API."""
