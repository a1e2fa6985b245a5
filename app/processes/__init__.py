"""One process of a backend, from fork to reap: its pipes, states, stderr and home, and the supervisor that owns it.

`connection` is all that sessions know of one. `app.backends` decides which process a session gets, `app.jail.spawner`
forks.
"""
