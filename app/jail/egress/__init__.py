"""The node's proxy for processes that have a network of their own: to public addresses, ports 80 and 443.

Each process has a listener on the loopback of its network (`jail/spawner/_network.py`), which is served here: HTTP with
CONNECT or an absolute URL, and SOCKS5. Nothing here knows why a process has one.
"""
