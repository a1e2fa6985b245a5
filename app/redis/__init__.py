"""One connection to Redis that many use at once: its address, its health, whose secret key its nodes have.

What stands in Redis is the business of `routing`, `cluster` and `limits`.
"""
