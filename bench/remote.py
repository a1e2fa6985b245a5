"""What a call costs by where its tool is: a process here, a server elsewhere, a toolset, a recipe of five calls.

    .venv/bin/python bench/remote.py [--rounds 5] [--calls 2000]

Starts two gateways: the server elsewhere is the echo server behind the second one. Prints the CPU time of the first
gateway for each call, medians over the rounds, and the ratio to a process here.
"""

import argparse
import statistics
import sys
from collections import defaultdict

from toolset import ROOT, cost_ms, running

STEPS = 5


def recipe() -> dict[str, object]:
    """Five calls of one tool, one after the other."""
    steps = [{"id": f"s{number}", "tool": "echo_echo", "arguments": {"text": "input.text"}} for number in range(STEPS)]
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return {"name": "five", "toolset": "all", "description": "Five times", "input_schema": schema, "steps": steps}


def measure(options: argparse.Namespace) -> None:
    with running() as far, running(TRUNKLINE_UPSTREAM_ALLOW="127.0.0.0/8") as near:
        echo = {"command": sys.executable, "args": ["-I", "-S", str(ROOT / "bench/echo_backend.py")]}
        for gateway in (far, near):
            gateway.lift_limits()
            gateway.make("/backends", {"name": "echo", **echo})
        key = far.make("/keys", {"scopes": ["mcp:connect"]})["key"]
        headers = {"Authorization": f"Bearer {key}"}
        near.make("/backends", {"name": "far", "url": f"{far.url}/t/default/echo/mcp", "headers": headers})
        near.make("/toolsets", {"name": "all", "members": [{"backend": "echo"}]})
        near.make("/recipes", recipe())
        targets = {"a process here": "echo", "a server elsewhere": "far", "a toolset": "all", "a recipe of five": "all"}
        tools = {"a toolset": "echo_echo", "a recipe of five": "five"}
        endpoints = {what: near.endpoint(name) for what, name in targets.items()}
        opened = {what: (endpoint, endpoint.open()) for what, endpoint in endpoints.items()}
        costs = defaultdict[str, list[float]](list)
        for round_ in range(options.rounds + 1):
            for what, (endpoint, session) in opened.items():
                name = tools.get(what, "echo")
                params = {"name": name, "arguments": {"text": "x" * 100}}
                spent = cost_ms(near, options.calls, lambda: endpoint.ask("tools/call", params, **session))  # noqa: B023
                if round_:  # the first one warms up
                    costs[what].append(spent)
        base = statistics.median(costs["a process here"])
        for what, found in costs.items():
            spent = statistics.median(found)
            print(f"{what:20} {spent:.3f} ms of CPU: x {spent / base:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000, help="in each round")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
