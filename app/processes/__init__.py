"""One process of a backend, from fork to reap: its pipes, its states, its stderr, its home, and who owns them all.

`link` is all that sessions know of one. Which process a session gets is decided in `backends`; the fork itself is the
business of `spawner`. The place for what confines a process.
"""
