"""Requests whose session or caller belongs to another node: that node is found, and the request forwarded to it."""
