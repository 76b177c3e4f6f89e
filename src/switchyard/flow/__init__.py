"""What Switchyard does, as services that a request calls and stages that run. `bootstrap` builds them and `entrypoints`
calls them; they reach the outside through `ports` only. The modules here are shared by the packages below.
"""
