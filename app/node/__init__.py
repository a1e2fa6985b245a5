"""One node as a whole: its long-lived objects (`gateway`, made of `parts`), the ASGI application over them
(`application`), the process that runs it until it is told to stop (`serve`), several of them on one machine (`fleet`),
and what `--demo` adds.

No other package but the CLI imports this one: objects are built here and passed what they need.
"""
