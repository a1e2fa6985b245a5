"""Runs the maker of rooms on the socket whose descriptor is the only argument; run as a file, as the spawner is."""

import os.path
import socket
import sys

sys.path.insert(
    0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
)

from app.jail.spawner.namespaces._server import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
