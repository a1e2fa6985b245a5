"""check_upstream: connects to a server that is reached by URL, and asks what it offers. For administrators."""

import time
from dataclasses import replace

import anyio

from app.backends.backend_check import DEADLINE_S, SUFFIX, CheckResult, Step, Talk, failure_of
from app.domain import BackendSpec
from app.errors import GatewayError, ShuttingDown
from app.upstreams.connecting import Steps
from app.upstreams.link import UpstreamLink
from app.upstreams.upstreams import Upstreams


async def check_upstream(upstreams: Upstreams, spec: BackendSpec) -> CheckResult:
    """Uses a session of its own, which its failures do not count for the backend's breaker.

    Raises:
        ShuttingDown: the node is ending.
    """
    alone = replace(spec, name=spec.name + SUFFIX, recovery="end", enabled=True)
    talk, failure, link = Talk(), None, None
    try:
        with anyio.fail_after(DEADLINE_S):
            link = await _connected(upstreams, alone, talk)
            await talk.about(link, spec.timeouts, link.handshake_succeeded)
    except ShuttingDown:
        raise
    except (GatewayError, TimeoutError) as error:
        failure = failure_of(talk.steps[-1].name, error)
    finally:
        if link is not None:
            link.release("checked")
        upstreams.forget(alone.key)
    return replace(talk.result(), failure=failure)


async def _connected(upstreams: Upstreams, alone: BackendSpec, talk: Talk) -> UpstreamLink:
    """With the steps to the connection, the last of which has failed if this raises."""
    steps, started = Steps(), time.monotonic()
    try:
        link = await upstreams.lease(alone, steps)
    except BaseException:
        taken = _taken(steps)
        left_s = time.monotonic() - started - sum(step.ms for step in taken) / 1000
        names = [name for name in ("resolve", "connect", "tls") if name not in {step.name for step in taken}]
        talk.took([*taken, Step((names or ["tls"])[0], round(max(0.0, left_s) * 1000, 1))])
        raise
    talk.took(_taken(steps))
    return link


def _taken(steps: Steps) -> list[Step]:
    return [Step(name, round(seconds * 1000, 1)) for name, seconds in steps.items()]
