"""A program of its own that asks /livez of several nodes in turn, on kept connections, and does nothing else.

Its arguments are HOST:PORT; each line of its output is the number of the node, when it was asked (time.monotonic, the
same clock for all processes of a machine), and after how many seconds it had answered.
"""

import http.client
import sys
import time

PERIOD_S = 0.02
LATENESS = -1
WAIT_S = 20.0  # an answer that takes longer counts as one that took this long


def ask(connection: http.client.HTTPConnection) -> None:
    try:
        connection.request("GET", "/livez")
        connection.getresponse().read()
    except OSError:
        connection.close()


def main() -> None:
    connections = [http.client.HTTPConnection(host, timeout=WAIT_S) for host in sys.argv[1:]]
    while True:
        for number, connection in enumerate(connections):
            began_at = time.monotonic()
            ask(connection)
            print(number, began_at, time.monotonic() - began_at, flush=True)
        began_at = time.monotonic()
        time.sleep(PERIOD_S)
        print(LATENESS, began_at, time.monotonic() - began_at - PERIOD_S, flush=True)


if __name__ == "__main__":
    main()
