"""One test over many cases, which share what it needs and are all looked at, whichever fails first.

`parametrize` would make an item of each: a thousand of them take longer to be told about than to be run.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Test = Callable[..., Awaitable[None]]


def over(names: Sequence[str], cases: Sequence[Sequence[str]]) -> Callable[[Test], Test]:
    """Calls the test with each case in turn, and fails with the cases that failed and why."""

    def decorated(test: Test) -> Test:
        async def swept(**fixtures: Any) -> None:
            wrong = []
            for case in cases:
                try:
                    await test(**fixtures, **dict(zip(names, case, strict=True)))
                except Exception as error:  # noqa: BLE001 - whatever it is, it is told of this case
                    wrong.append(f"{' '.join(case)}: {error!r}")
            assert not wrong, f"{len(wrong)} of {len(cases)} cases\n" + "\n".join(wrong)

        signature = inspect.signature(test)
        asked = [each for name, each in signature.parameters.items() if name not in names]
        swept.__name__, swept.__doc__ = test.__name__, test.__doc__
        swept.__signature__ = signature.replace(parameters=asked)  # type: ignore[attr-defined]
        return swept

    return decorated
