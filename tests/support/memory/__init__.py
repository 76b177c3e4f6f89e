"""A database, a clock and randomness in the process, held to the same contract suites as the real engines.

Nothing that they hold survives the process, and no part of the product uses them:

    clock = ManualClock()
    database = MemoryDatabase(clock)  # journal, queries, keys, liveness, lanes
    await database.journal.append(0, "group-1", [change], clock.now())
    assert database.journal.orders  # every row is a public dictionary
"""
