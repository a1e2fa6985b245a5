"""A recipe is a tool of the toolset that calls others: what it does, what it says when it cannot, and who is asked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.types import ElicitResult, ListRootsResult, Root

from tests.integration.gateway import Gateway, running_gateway, until
from tests.integration.nodes import running_nodes
from tests.integration.servers import python_client
from tests.integration.toolboxes import Toolset, toolboxes
from tests.integration.wire import RpcError, Wire, events, rpc, wire

NAMED = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ELICITATION: dict[str, Any] = {"elicitation": {}}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("recipes") / "data") as gateway:
        yield gateway


def cook(gateway: Gateway, *steps: Any, **members: Any) -> Toolset:
    """A toolset of two toolboxes, with a recipe `cook` of these steps."""
    toolset = toolboxes(gateway, "red", "blue")
    body = {"name": "cook", "toolset": "all", "steps": list(steps), **members}
    gateway.api("POST", f"/tenants/{toolset.tenant}/recipes", body)
    return toolset


def step(name: str, tool: str, **members: Any) -> dict[str, Any]:
    return {"id": name, "tool": tool, **members}


def outcomes(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["step"], each["outcome"]) for each in result["_meta"]["trunkline/trace"]]


async def run(session: Wire, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = await session.request("tools/call", {"name": "cook", "arguments": arguments})
    return found


def runs(gateway: Gateway, outcome: str) -> float:
    return gateway.metrics().get(f'trunkline_recipe_runs_total{{outcome="{outcome}"}}', 0.0)


async def refusal(session: Wire, tool: str) -> str | None:
    try:
        await session.call(tool)
    except RpcError as error:
        return str(error.reason)
    return None


async def talk(session: Wire, answer: dict[str, Any] | None, identifier: Any = 7, **arguments: Any) -> Any:
    """Runs the recipe, and answers its questions; what came, last the answer."""
    came = []
    body = rpc("tools/call", identifier, {"name": "cook", "arguments": arguments, "_meta": {"progressToken": "p"}})
    async with session.stream("POST", body) as response:
        async for event in events(response):
            message: Any = event.message if event.data else {"method": "primed"}
            came.append(message)
            if message.get("method") == "elicitation/create":
                reply = {"jsonrpc": "2.0", "id": message["id"], "result": answer}
                assert (await session.post(reply)).status_code == 202
    return came


async def test_steps_run_in_order_and_at_once_and_what_they_say_is_put_together(gateway: Gateway) -> None:
    toolset = cook(
        gateway,
        step("first", "red_say", arguments={"text": "input.text"}),
        [
            step("left", "red_say", arguments={"text": "join('', [steps.first.text, '!'])"}),
            step("right", "blue_say", arguments={"text": "'b'"}),
        ],
        step("never", "blue_die", condition="input.text == 'die'"),
        input_schema=NAMED,
        output={"said": "[steps.left.text, steps.right.text]", "skipped": "steps.never.skipped"},
    )
    async with wire(toolset) as session:
        listed = (await session.request("tools/list"))["tools"][0]
        assert (listed["name"], listed["inputSchema"]) == ("cook", NAMED)
        assert listed["annotations"]["destructiveHint"] is True
        await until(lambda: not gateway.backends(), 10)  # those that were asked for their tools have ended
        result = await run(session, text="a")
        assert result["structuredContent"] == {"said": ["red: red: a!", "blue: b"], "skipped": True}
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        done = outcomes(result)
        assert sorted(done[1:3]) == [("left", "ok"), ("right", "ok")]
        assert [done[0], done[3]] == [("first", "ok"), ("never", "skipped")]
        wrong = await run(session, text=5)
        assert wrong["isError"]
        assert "the argument text is no string" in wrong["content"][0]["text"]


async def test_progress_is_told_step_by_step(gateway: Gateway) -> None:
    async with wire(cook(gateway, step("a", "red_say"), step("b", "blue_say"))) as session:
        came = await talk(session, None)
        told = [each["params"] for each in came if each.get("method") == "notifications/progress"]
        assert [(each["progressToken"], each["progress"], each["total"]) for each in told] == [("p", 1, 2), ("p", 2, 2)]
        assert [each["message"] for each in told] == ["a: ok", "b: ok"]


ASKED = {"message": "join('', ['Really say ', input.text, '?'])", "if_cancelled": "skip"}
FORM = {"type": "object", "properties": {"loud": {"type": "boolean"}}}


@pytest.mark.parametrize(
    ("answer", "expected", "is_error"),
    [
        ({"action": "accept", "content": {"loud": True}}, [("a", "ok"), ("b", "ok")], False),
        ({"action": "decline"}, [("a", "declined")], True),
        ({"action": "cancel"}, [("a", "dismissed"), ("b", "ok")], False),
    ],
    ids=["accepted", "declined", "dismissed"],
)
async def test_the_user_is_asked_before_a_step(gateway: Gateway, answer: Any, expected: Any, is_error: bool) -> None:
    steps = (
        step("a", "red_say", arguments={"text": "input.text"}, question={**ASKED, "requested_schema": FORM}),
        step("b", "blue_say", arguments={"text": "to_string(steps.a.answer.loud)"}),
    )
    async with wire(cook(gateway, *steps, input_schema=NAMED), capabilities=ELICITATION) as session:
        came = await talk(session, answer, text="hi")
        question = next(each for each in came if each.get("method") == "elicitation/create")
        assert question["params"] == {"message": "Really say hi?", "requestedSchema": FORM}
        result = came[-1]["result"]
        assert (outcomes(result), result.get("isError", False)) == (expected, is_error)
        words = result["content"][0]["text"]
        if is_error:
            assert words == "the user declined before the step a\nDone: nothing. Not done: a, b."
        else:
            assert words == ("blue: true" if answer["action"] == "accept" else "blue: null")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("action", ["accept", "decline", None])
async def test_the_official_client_answers_in_either_era(gateway: Gateway, mode: str, action: Any) -> None:
    toolset = cook(gateway, step("a", "red_say", arguments={"text": "'x'"}, question={"message": "'Sure?'"}))
    asked: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action=action, content={} if action == "accept" else None)

    callbacks = {} if action is None else {"elicitation_callback": answer}
    async with python_client(toolset, "streamable", mode=mode, **callbacks) as client:
        result = await client.call_tool("cook", {})
        assert asked == ([] if action is None else ["Sure?"])
        assert result.is_error is (action != "accept")
        words = result.content[0].text
        if action == "accept":
            assert words == "red: x"
        else:
            assert words.endswith("Done: nothing. Not done: a.")
        if action is None:
            assert "ask" in words


async def test_a_member_that_dies_fails_its_step_and_the_answer_says_what_was_done(gateway: Gateway) -> None:
    toolset = cook(gateway, step("a", "red_say"), step("b", "blue_die"), step("c", "red_say"))
    async with wire(toolset) as session:
        result = await run(session)
        assert result["isError"]
        words = result["content"][0]["text"]
        assert words.startswith("the step b (blue_die) failed: ")
        assert words.endswith("\nDone: a. Begun, and not known to be done: b. Not done: c.")
        assert outcomes(result) == [("a", "ok"), ("b", "failed")]
        assert await session.call("red_count") == "red: 2"


async def test_a_recipe_ends_at_its_deadline_and_its_calls_are_cancelled(gateway: Gateway) -> None:
    slow = step("a", "red_slow", arguments={"seconds": 30})
    async with wire(cook(gateway, slow, step("b", "blue_say"), deadline_s=1)) as session:
        result = await run(session)
        assert "was not done within 1 s" in result["content"][0]["text"]
        assert outcomes(result) == [("a", "timeout")]
        assert runs(gateway, "timeout") >= 1
        assert await session.call("red_say", text="x") == "red: x"


async def test_a_client_that_cancels_ends_the_run_and_what_it_has_begun(gateway: Gateway) -> None:
    steps = [step("a", "red_slow", arguments={"seconds": 20}), step("q", "blue_say", question={"message": "'?'"})]
    toolset = cook(gateway, steps)
    async with wire(toolset, capabilities=ELICITATION) as session:
        body = rpc("tools/call", "mine", {"name": "cook", "arguments": {}})
        before = runs(gateway, "cancelled")
        async with session.stream("POST", body) as response:
            async for event in events(response):
                message: Any = event.message if event.data else {}
                if message.get("method") == "elicitation/create":
                    cancelled = {"method": "notifications/cancelled", "params": {"requestId": "mine"}}
                    assert (await session.post({"jsonrpc": "2.0", **cancelled})).status_code == 202
                    break
        with anyio.fail_after(10):
            while runs(gateway, "cancelled") == before:
                await anyio.sleep(0.02)
        assert await session.call("red_say", text="x") == "red: x"


async def test_a_tool_that_is_withheld_meanwhile_fails_its_step_with_the_refusal_of_the_pin(gateway: Gateway) -> None:
    toolset = cook(
        gateway, step("a", "blue_say"), step("b", "red_say", question={"message": "'Go on?'"}), step("c", "blue_say")
    )
    async with wire(toolset, capabilities=ELICITATION) as session:
        body = rpc("tools/call", 5, {"name": "cook", "arguments": {}})
        async with session.stream("POST", body) as response:
            async for event in events(response):
                message: Any = event.message if event.data else {}
                if message.get("method") == "elicitation/create":
                    gateway.api("PATCH", f"/tenants/{toolset.tenant}/backends/red", {"pin": "block"})
                    with anyio.fail_after(30):
                        while await refusal(session, "red_say") != "tool_withheld":
                            await anyio.sleep(0.05)
                    reply = {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept", "content": {}}}
                    await session.post(reply)
                elif "result" in message:
                    words = message["result"]["content"][0]["text"]
        assert "can approve it" in words
        assert words.endswith("Done: a. Not done: b, c.")
        shown = gateway.api("GET", f"/tenants/{toolset.tenant}/recipes/cook")
        assert any("step b" in each for each in shown["problems"])


async def test_a_result_that_is_too_large_fails_its_step(gateway: Gateway) -> None:
    toolset = cook(gateway, step("a", "red_say", arguments={"text": "input.text"}), input_schema=NAMED)
    async with wire(toolset) as session:
        result = await run(session, text="x" * (1 << 20))
        assert "its result exceeds 1 MiB" in result["content"][0]["text"]
        assert outcomes(result) == [("a", "failed")]


async def test_two_runs_at_once_with_equal_ids_in_two_sessions_do_not_mix(gateway: Gateway) -> None:
    said = step("a", "red_say", arguments={"text": "input.text"}, question={"message": "input.text"})
    toolset = cook(gateway, said, step("b", "blue_slow"), output="steps.a.text", input_schema=NAMED)
    results: dict[str, str] = {}

    async def one(name: str, session: Wire, identifier: int) -> None:
        came = await talk(session, {"action": "accept", "content": {}}, identifier, text=name)
        assert [each["params"]["message"] for each in came if each.get("method") == "elicitation/create"] == [name]
        results[name] = came[-1]["result"]["content"][0]["text"]

    async with (
        wire(toolset, capabilities=ELICITATION) as first,
        wire(toolset, capabilities=ELICITATION) as second,
        anyio.create_task_group() as tasks,
    ):
        for number, session in enumerate((first, second)):
            for identifier in (1, 2, 3):
                tasks.start_soon(one, f"{number}-{identifier}", session, identifier)
    assert results == {f"{n}-{i}": f"red: {n}-{i}" for n in (0, 1) for i in (1, 2, 3)}


async def test_steps_count_against_the_limits_of_the_tenant(gateway: Gateway) -> None:
    toolset = cook(gateway, [step("a", "red_slow"), step("b", "blue_slow"), step("c", "blue_slow")])
    gateway.api("PATCH", f"/tenants/{toolset.tenant}", {"limits": {"in_flight": 3}})
    async with wire(toolset) as session:
        for _ in range(2):  # the second one shows that places are given back
            result = await run(session)
            assert "its limit is 3" in result["content"][0]["text"]
            assert sorted(outcome for _, outcome in outcomes(result)) == ["failed", "ok", "ok"]


async def test_a_recipe_is_found_and_called_through_the_search(gateway: Gateway) -> None:
    toolset = cook(gateway, step("a", "red_say"), description="Prepares a hot dinner for guests")
    gateway.api("PATCH", f"/tenants/{toolset.tenant}/toolsets/all", {"mode": "search"})
    async with wire(toolset) as session:
        found = await session.request("tools/call", {"name": "find_tools", "arguments": {"query": "dinner for guests"}})
        assert found["structuredContent"]["tools"][0]["name"] == "cook"
        assert (await session.call("call_tool", name="cook", arguments={})).startswith("red: ")


async def test_another_tenants_recipe_is_never_seen_and_open_sessions_learn_of_new_ones(gateway: Gateway) -> None:
    cook(gateway, step("a", "red_say"))
    mine = toolboxes(gateway, "red")
    async with wire(mine) as session:
        assert (await session.ask("cook")).code == -32602
        async with session.stream("GET") as stream:
            body = {"name": "dish", "toolset": "all", "steps": [step("a", "red_say")]}
            gateway.api("POST", f"/tenants/{mine.tenant}/recipes", body)
            async for event in events(stream):
                if event.data and event.message["method"] == "notifications/tools/list_changed":
                    break
        assert (await session.call("dish")).startswith("red: ")


async def test_runs_on_two_nodes(tmp_path: Path, postgres_database: str) -> None:
    with running_nodes(tmp_path, postgres_database, 2) as nodes:
        await nodes.all_know_each_other()
        toolset = cook(nodes.all[0], step("a", "red_say", arguments={"text": "'x'"}, question={"message": "'Sure?'"}))
        accepted = {"action": "accept", "content": {}}
        async with wire(toolset, capabilities=ELICITATION) as session:
            for url in nodes.urls(toolset):
                session.url = url
                assert (await talk(session, accepted))[-1]["result"]["content"][0]["text"] == "red: x"
            nodes.all[0].api("PATCH", f"/tenants/{toolset.tenant}/recipes/cook", {"output": "'changed'"})
            with anyio.fail_after(10):
                while (await talk(session, accepted))[-1]["result"]["content"][0]["text"] != "changed":
                    await anyio.sleep(0.05)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_question_of_a_member_in_a_step_reaches_the_client_in_either_era(gateway: Gateway, mode: str) -> None:
    toolset = cook(gateway, [step("a", "red_ask"), step("b", "blue_ask")], output="[steps.a.text, steps.b.text]")

    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri="file:///here")])  # type: ignore[arg-type]

    async with python_client(toolset, "streamable", mode=mode, list_roots_callback=roots) as client:
        result = await client.call_tool("cook", {})
        assert [each[:4] for each in result.structured_content["result"]] == ["red:", "blue"]
        assert all("file:///here" in each for each in result.structured_content["result"])


async def test_the_calls_of_a_tenant_are_those_of_its_clients(gateway: Gateway) -> None:
    """And not the steps, which take places too."""
    schema = {"type": "object", "properties": {"seconds": {"type": "number"}}}
    steps = [step(name, f"{name}_slow", arguments={"seconds": "input.seconds"}) for name in ("red", "blue")]
    toolset = cook(gateway, steps, input_schema=schema)
    of_tenant = f"/tenants/{toolset.tenant}"
    async with wire(toolset) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.request, "tools/call", {"name": "cook", "arguments": {"seconds": 20}})
        await until(lambda: gateway.api("GET", of_tenant)["use"]["in_flight"] == 3, 15)
        (listed,) = gateway.api("GET", f"{of_tenant}/sessions")["items"]
        (use,) = [each for each in gateway.api("GET", "/use")["items"] if each["tenant"] == toolset.tenant]
        assert (use["calls"], use["calls_total"]) == (listed["calls"], listed["calls_total"]) == (1, 2)
        tasks.cancel_scope.cancel()
