"""The kill switch, and the cancels of the orders that a kill covers. Called by the routes, the command line and the
control socket.
"""
