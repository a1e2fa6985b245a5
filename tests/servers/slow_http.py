"""An HTTP server that takes requests and never answers. Prints its port."""

import socket
import time

with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    kept = []
    deadline = time.monotonic() + 60
    listener.settimeout(60)
    while time.monotonic() < deadline:
        connection, _ = listener.accept()
        connection.recv(65536)
        kept.append(connection)
