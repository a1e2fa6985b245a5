"""Namespaces for a fork of a template that has namespaces of its own, as a process has that is executed.

Nothing in a template may make or enter a namespace. They are made outside of it, by a process that has seen nothing
of any session, and the fork is led into it while it stands still (_entering.py).
"""
