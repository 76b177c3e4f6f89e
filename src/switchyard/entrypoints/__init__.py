"""How the outside reaches the flow: HTTP, the dashboard, the command line, the control socket. Nothing imports it."""
