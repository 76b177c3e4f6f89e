"""The HTTP API: routes by subject, which decode a request, call one service of the flow, and encode its answer.
`app.py` puts them together; the command line serves them.
"""
