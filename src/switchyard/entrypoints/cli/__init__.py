"""The command `switchyard`, a module for each noun. Starts processes through `bootstrap`, and talks to running ones
through `client` or the control socket.
"""
