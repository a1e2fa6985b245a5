"""A program of its own that asks /livez of several nodes in turn, on kept connections, and does nothing else.

Its arguments are HOST:PORT:PID; each line of its output is the number of the node, when it was asked (time.monotonic,
the same clock for all processes of a machine), after how many seconds it had answered, and for how many of them its
main thread waited for a processor.
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


def waited_s(pid: str) -> float:
    """For how long the main thread could have run, and others did (proc(5): schedstat); 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except OSError:
        return 0.0


def main() -> None:
    places = [place.rpartition(":") for place in sys.argv[1:]]
    nodes = [(http.client.HTTPConnection(host, timeout=WAIT_S), pid) for host, _, pid in places]
    while True:
        for number, (connection, pid) in enumerate(nodes):
            began_at, before = time.monotonic(), waited_s(pid)
            ask(connection)
            seconds = time.monotonic() - began_at
            print(number, began_at, seconds, max(0.0, waited_s(pid) - before), flush=True)
        began_at = time.monotonic()
        time.sleep(PERIOD_S)
        print(LATENESS, began_at, time.monotonic() - began_at - PERIOD_S, 0.0, flush=True)


if __name__ == "__main__":
    main()
