"""From requests to committed orders, cancels and amends. Called by the HTTP routes; calls `flow/risk`, `flow/routing`
and `flow/commit`, and no venue.
"""
