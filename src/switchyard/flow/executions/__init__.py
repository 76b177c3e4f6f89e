"""From a venue's reports to orders and positions: the recorder, corrections, strays, and passes over open orders. Run
by `bootstrap` in a worker, and before a venue is opened for sending.
"""
