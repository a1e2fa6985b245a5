"""A node that says which one it is, takes requests, and never answers. Prints its port."""

import select
import socket
import time

from app.cluster.peers.credentials import NodeCredentials

NODE = NodeCredentials(b"k" * 32, "node-b", time.time)


def hear(connection: socket.socket) -> bool:
    """Answers what asks who is there; whether the connection is still open."""
    head = connection.recv(65536)
    _, asked, rest = head.partition(b"trunkline-challenge: ")
    proof = NODE.prove(rest.partition(b"\r\n")[0]) if asked else None
    if proof is not None:
        connection.sendall(b"HTTP/1.1 204 No Content\r\ntrunkline-node: %b\r\n\r\n" % proof)
    return bool(head)


with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    sockets, deadline = [listener], time.monotonic() + 60
    while time.monotonic() < deadline:
        for each in select.select(sockets, [], [], 60)[0]:
            if each is listener:
                sockets.append(listener.accept()[0])
            elif not hear(each):
                sockets.remove(each)
                each.close()
