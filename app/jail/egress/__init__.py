"""The node's way out for processes that have a network of their own: a proxy to public addresses, ports 80 and 443, and
connections to what the `allow` of a backend names.

Each process has listeners in its network (`jail/spawner/_network.py`), which are served here: the proxy's speaks HTTP
with CONNECT or an absolute URL, and SOCKS5; connections to the others are passed on. Nothing here knows why a process
has them.
"""
