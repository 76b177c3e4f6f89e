"""What every HTTP application shares before its routes: sockets, limits, tokens, bodies, headers. Called by uvicorn and
by the routes; it knows no order.
"""
