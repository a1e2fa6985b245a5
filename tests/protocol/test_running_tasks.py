"""RunningTasks: which tasks of a session still run, by the messages that tell of them."""

from typing import Any

import msgspec
import pytest

from app.protocol._running_tasks import MAX_TASKS, RunningTasks
from app.protocol.exchange import Exchange
from tests.protocol.test_exchange import call


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def task(status: str = "working", **more: Any) -> dict[str, Any]:
    return {"taskId": "t", "status": status, **more}


@pytest.fixture
def tasks() -> RunningTasks:
    return RunningTasks()


@pytest.mark.parametrize("result", [{"task": task()}, {"resultType": "task", **task()}])
def test_a_call_that_has_become_a_task_runs_on(tasks: RunningTasks, result: Any) -> None:
    tasks.answered("tools/call", None, raw(result), 0.0)
    assert tasks.is_any(1e9)


def test_an_answer_without_a_task_is_none(tasks: RunningTasks) -> None:
    tasks.answered("tools/call", None, raw({"content": []}), 0.0)
    assert not tasks.is_any(0.0)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "notification"])
def test_a_task_is_over_when_its_server_says_so(tasks: RunningTasks, method: str, status: str) -> None:
    tasks.answered("tools/call", None, raw({"task": task()}), 0.0)
    if method == "notification":
        tasks.seen(msgspec.json.decode(raw(task(status)), type=dict[str, msgspec.Raw]), 1.0)
    else:
        tasks.answered(method, None, raw(task(status)), 1.0)
    assert not tasks.is_any(1.0)


def test_a_task_whose_result_was_given_is_over(tasks: RunningTasks) -> None:
    tasks.answered("tools/call", None, raw({"task": task()}), 0.0)
    tasks.answered("tasks/get", None, raw(task("input_required")), 1.0)
    assert tasks.is_any(1.0)
    tasks.answered("tasks/result", "t", raw({"content": []}), 2.0)
    assert not tasks.is_any(2.0)


@pytest.mark.parametrize("name", ["ttl", "ttlMs"])
def test_a_task_that_its_server_has_forgotten_is_over(tasks: RunningTasks, name: str) -> None:
    tasks.answered("tools/call", None, raw({"task": {**task(), name: 5000}}), 100.0)
    assert tasks.is_any(104.0)
    assert not tasks.is_any(105.0)


def test_of_too_many_one_runs_for_certain(tasks: RunningTasks) -> None:
    for number in range(MAX_TASKS + 1):
        tasks.answered("tools/call", None, raw({"task": {"taskId": str(number), "status": "working"}}), 0.0)
    for number in range(MAX_TASKS + 1):
        tasks.answered("tasks/result", str(number), raw({}), 1.0)
    assert tasks.is_any(1.0)


def test_the_exchange_tells_of_calls_that_may_become_tasks() -> None:
    exchange = Exchange(60.0)
    plain, _ = call(exchange, "1")
    made, _ = call(exchange, "2", params='{"task":{"ttl":1000}}')
    for each in (plain, made):
        line = b'{"jsonrpc":"2.0","id":%b,"result":{"task":{"taskId":"%b","status":"working"}}}'
        exchange.receive(line % (each.gateway_id, each.gateway_id), 0.0)
    assert not plain.about_task
    assert exchange.has_running_task(0.0)
    status = {"taskId": made.gateway_id.decode(), "status": "completed"}
    exchange.receive(
        msgspec.json.encode({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": status}), 1.0
    )
    assert not exchange.has_running_task(1.0)


def test_where_the_server_may_make_a_task_of_any_call_every_answer_is_looked_at() -> None:
    exchange = Exchange(60.0)
    exchange.any_call_may_make_task()
    made, _ = call(exchange, "1")
    exchange.receive(
        b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"task","taskId":"a","status":"working"}}' % made.gateway_id,
        0.0,
    )
    assert exchange.has_running_task(0.0)
