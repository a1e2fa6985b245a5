"""What the console costs: pages with many sessions and live traffic, and the gateway's CPU time per call beside them.

    .venv/bin/python bench/console.py [--sessions 5000] [--calls 50] [--consoles 10] [--seconds 30] [--rounds 3]

Starts a gateway of its own with one shared echo server, opens so many sessions, and sends so many calls a second over
them. In turns with nobody at the console, and with so many consoles: each asks again for the page that it shows as
often as `page.js` does. Prints the times of the pages, and the ratio of CPU time per call.
"""

import argparse
import re
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from toolset import ROOT, Endpoint, Gateway, running

SHOWN = ("", "/tenants/default", "/tenants/default/sessions", "/tenants/default/processes", "/tenants/default/backends")
LOOKS = 10  # at each page, before
_LIVE = re.compile(r'id="(\w+)" data-live="(\d+)"')


class Console:
    """Somebody who looks at one page."""

    def __init__(self, url: str, key: str, path: str) -> None:
        self._http, self.path = httpx2.Client(base_url=url, timeout=60), path
        form = {"key": key, "to": "/console"}
        self._http.post("/console/sign-in", data=form, headers={"Origin": url})
        self.live = {part: int(every_s) for part, every_s in _LIVE.findall(self.look()[1])}
        self._tags: dict[str, str] = {}

    def look(self) -> tuple[float, str]:
        """How long the page took, and its text."""
        began = time.perf_counter()
        answer = self._http.get("/console" + self.path)
        assert answer.status_code == 200, (self.path, answer.status_code, answer.headers.get("location"))
        return time.perf_counter() - began, answer.text

    def renew(self, parts: list[str]) -> float:
        """How long these parts took."""
        began, named = time.perf_counter(), " ".join(parts)
        answer = self._http.get(
            "/console" + self.path, headers={"X-Renew": named, "If-None-Match": self._tags.get(named, "")}
        )
        assert answer.status_code in (200, 304), (self.path, answer.status_code)
        self._tags[named] = answer.headers["etag"]
        return time.perf_counter() - began


@contextmanager
def looking(consoles: list[Console], times: dict[str, list[float]]) -> Iterator[None]:
    """Each console in a thread of its own."""
    ends = threading.Event()

    def look(console: Console) -> None:
        asked = dict.fromkeys(console.live, time.time())
        least = min(console.live.values())
        while not ends.wait(least - time.time() % least + 0.02):
            now = time.time()
            due = [part for part, every_s in console.live.items() if now // every_s > asked[part] // every_s]
            asked |= dict.fromkeys(due, now)
            if due:
                times[f"{console.path} {' '.join(due)}"].append(console.renew(due))

    threads = [threading.Thread(target=look, args=(each,)) for each in consoles]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        ends.set()
        for each in threads:
            each.join()


def cpu_of_a_call(
    gateway: Gateway, endpoint: Endpoint, sessions: list[dict[str, str]], rate: int, seconds: float
) -> float:
    """CPU seconds of the gateway for each call, at this rate."""
    params = {"name": "echo", "arguments": {"text": "x" * 100}}
    count, began, spent = round(rate * seconds), time.perf_counter(), gateway.cpu_s
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        endpoint.ask("tools/call", params, **sessions[number % len(sessions)])
    return (gateway.cpu_s - spent) / count


def measure(options: argparse.Namespace) -> None:
    with running() as gateway:
        gateway.lift_limits()
        words = ["-I", "-S", str(ROOT / "bench/echo_backend.py")]
        about = {"name": "echo", "command": sys.executable, "args": words, "isolation": "shared", "max_processes": 2}
        gateway.make("/backends", about)
        endpoint = gateway.endpoint("echo")
        sessions = [endpoint.open() for _ in range(options.sessions)]
        key = gateway.make("/keys", {"scopes": ["platform:admin"]})["key"]
        consoles = [Console(gateway.url, key, SHOWN[number % len(SHOWN)]) for number in range(options.consoles)]
        times, costs = defaultdict[str, list[float]](list), defaultdict[bool, list[float]](list)
        for each in consoles:
            times[each.path] += [each.look()[0] for _ in range(LOOKS)]
        for _ in range(options.rounds):
            for is_looked_at in (False, True):
                with looking(consoles if is_looked_at else [], times):
                    cost = cpu_of_a_call(gateway, endpoint, sessions, options.calls, options.seconds)
                costs[is_looked_at].append(cost)
        for path, found in times.items():
            p95 = statistics.quantiles(found, n=20)[-1] if len(found) > 1 else found[0]
            shown = f"median {statistics.median(found) * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms"
            print(f"{path or '/':52} {len(found):4} times, {shown}")
        alone, beside = (statistics.median(costs[each]) * 1e3 for each in (False, True))
        beside_them = f"with {options.consoles} consoles {beside:.3f}: x {beside / alone:.2f}"
        print(f"a call: {alone:.3f} ms of CPU, {beside_them}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=5000)
    parser.add_argument("--calls", type=int, default=50, help="a second")
    parser.add_argument("--consoles", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each half of a round")
    parser.add_argument("--rounds", type=int, default=3)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
