"""A node that accepts links from others, takes what comes over them, and never answers. Prints its port."""

import socket
import time

from app.routing.node_proof import NodeProof

PROOF = NodeProof(b"k" * 32, "node-b")


def accept_link(connection: socket.socket) -> None:
    """Proves that it is a node to whoever asks as one."""
    head = b""
    while b"\r\n\r\n" not in head and (read := connection.recv(65536)):
        head += read
    _, asked, rest = head.partition(b"trunkline-challenge: ")
    proved = PROOF.prove(rest.partition(b"\r\n")[0]) if asked else None
    if proved is not None:
        connection.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: trunkline-link\r\n"
            b"trunkline-node: %b\r\n\r\n" % proved[0]
        )


with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    kept = []
    deadline = time.monotonic() + 60
    listener.settimeout(60)
    while time.monotonic() < deadline:
        connection, _ = listener.accept()
        connection.settimeout(5)
        kept.append(connection)
        accept_link(connection)
