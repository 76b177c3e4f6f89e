"""Pre-trade risk: limits, their checks and claims, and kills, as pure functions. The flow judges requests with it, the
appends of both engines store its claims.
"""
