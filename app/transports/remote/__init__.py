"""Requests whose session or caller is another node's: found, sent on, answered here as they are made there.

A node that is alone never gets past the first question of this package.
"""
