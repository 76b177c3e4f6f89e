"""Adapters that keep everything in the process, public and held to the same contract suites as the real engines.

`MemoryCache` and `MemoryRate` serve a single process in production. The others run the flow in tests and examples
without a database, a broker or a real clock; nothing they hold survives the process:

    clock = ManualClock()
    database = MemoryDatabase(clock)  # journal, queries, keys, liveness, lanes
    venue = NullVenue(clock=clock)  # accepts and fills every order
    await database.journal.append(0, "group-1", [change], clock.now())
    assert database.journal.orders  # every row is a public dictionary
"""
