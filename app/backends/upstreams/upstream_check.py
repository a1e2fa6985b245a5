"""check_upstream: connects to a server that is reached by URL, and asks what it offers. For administrators."""

from dataclasses import replace

import anyio

from app.backends.checks.backend_check import (
    DEADLINE_S,
    QUESTIONS,
    SUFFIX,
    CheckResult,
    Talk,
    failure_of,
    longer_start_s,
)
from app.backends.checks.steps import Steps
from app.backends.upstreams.connecting import STEPS
from app.backends.upstreams.upstreams import Upstreams
from app.domain import BackendSpec
from app.errors import GatewayError, ShuttingDown


async def check_upstream(upstreams: Upstreams, spec: BackendSpec, steps: Steps) -> CheckResult:
    """Uses a session of its own, which its failures do not count for the backend's breaker.

    Raises:
        ShuttingDown: the node is ending.
    """
    alone = replace(spec, name=spec.name + SUFFIX, recovery="end", enabled=True)
    talk, failure, session = Talk(steps), None, None
    steps.expect(*(each for each in STEPS if each != "proxy" or spec.connect.proxy is not None), *QUESTIONS)
    try:
        with anyio.fail_after(DEADLINE_S + longer_start_s(spec.timeouts)):
            session = await upstreams.lease(alone, steps)
            steps.skip(*STEPS)
            await talk.about(session, spec.timeouts, session.handshake_succeeded)
    except ShuttingDown:
        raise
    except (GatewayError, TimeoutError) as error:
        if not steps.taken:  # it may not even be looked for
            steps.took(STEPS[0], 0.0)
        failure = failure_of(steps.taken[-1].name, error)
    finally:
        if session is not None:
            session.release("checked")
        upstreams.forget(alone.key)
    return replace(talk.result(), failure=failure)
