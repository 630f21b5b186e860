"""Commands that a rule has the person asked about, as the SDK's own client meets them, in both eras of the protocol."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp_types import CallToolResult, ElicitResult, InputRequiredResult, TextContent

from mcp_sandbox.app import open_services
from mcp_sandbox.policy.command_rules import CommandPolicy, Decision, Rule
from mcp_sandbox.service.approval import CommandQuestion
from mcp_sandbox.service.services import Services
from mcp_sandbox.tools import asking
from mcp_sandbox.tools.server import build_server

__all__: list[str] = []

Era = Literal["auto", "legacy"]
ONCE, SESSION, _ = CommandQuestion.choices
RULES = CommandPolicy(
    rules=(Rule.of("echo", Decision.ASK), Rule.of("cat", Decision.DENY, reason="use read_file")),
    layer="the user's file",
)


class Person:
    """Answers the questions of a client, and keeps them."""

    def __init__(self, action: str = "accept", decision: str = ONCE) -> None:
        self.action, self.decision = action, decision
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        assert context is not None
        self.asked.append(params.message)
        content = {"decision": self.decision} if self.action == "accept" else None
        return ElicitResult(action=self.action, content=content)  # type: ignore[arg-type]


@pytest.fixture(params=["auto", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture
async def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Services]:
    monkeypatch.setenv("MCP_SANDBOX_HOME", str(tmp_path / "state"))
    async with open_services(provider="memory", commands=(RULES,)) as opened:
        yield opened


Connected = Callable[[Person | None], Any]


@pytest.fixture
def connected(services: Services, era: Era) -> Connected:
    """Connect a client whose person answers; `None` is a client that cannot ask."""

    async def source() -> Services:
        return services

    @asynccontextmanager
    async def connect(person: ElicitationFnT | None) -> AsyncGenerator[Client]:
        async with Client(build_server(source), mode=era, elicitation_callback=person) as client:
            yield client

    return connect


async def ran(client: Client, command: str, **more: Any) -> tuple[str, bool]:
    result = await client.call_tool("exec", {"command": command, **more})
    assert isinstance(result, CallToolResult)
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text, not result.is_error


async def test_what_the_person_approves_runs_and_is_asked_about_again(connected: Connected) -> None:
    person = Person()
    async with connected(person) as client:
        for times in (1, 2):
            text, fine = await ran(client, "echo approved")
            assert fine
            assert "approved" in text
            assert len(person.asked) == times
        assert (await ran(client, "true"))[1]
        assert len(person.asked) == 2


async def test_what_is_approved_for_the_session_is_not_asked_about_again(connected: Connected) -> None:
    person = Person(decision=SESSION)
    async with connected(person) as client:
        for _ in range(3):
            assert (await ran(client, "echo approved"))[1]
        assert len(person.asked) == 1
        assert (await ran(client, "echo approved "))[1]
        assert (await ran(client, "echo approved", env={"A": "1"}))[1]
        assert (await ran(client, "echo approved", cwd="/tmp"))[1]
        assert (await ran(client, "echo approved", run_in_background=True))[1]
        assert "more input later" in person.asked[-1]
        assert len(person.asked) == 5, "every other byte, variable or directory is another question"


@pytest.mark.parametrize(
    ("action", "decision", "said"),
    [
        ("accept", "Do not run it", "who said no"),
        ("accept", "yes, whatever", "who said no"),
        ("decline", "", "who said no"),
        ("cancel", "", "gave no answer"),
    ],
)
async def test_without_a_yes_nothing_runs(connected: Connected, action: str, decision: str, said: str) -> None:
    async with connected(Person(action, decision)) as client:
        text, fine = await ran(client, "echo ran")
        assert not fine
        assert said in text
        assert "the rule `echo`" in text


async def test_cmd03_a_client_that_cannot_ask_gets_a_denial_that_says_what_to_change(connected: Connected) -> None:
    async with connected(None) as client:
        text, fine = await ran(client, "echo ran")
        assert not fine
        assert "which cannot be done here" in text
        assert "have the user change the rule in the user's file" in text


async def test_a_denied_command_is_not_asked_about(connected: Connected) -> None:
    person = Person()
    async with connected(person) as client:
        text, fine = await ran(client, "echo x; cat y")
        assert not fine
        assert "use read_file" in text
        assert "the user's file" in text
        assert person.asked == []


async def test_cmd04_the_question_shows_all_that_runs_and_nothing_hides_in_it(connected: Connected) -> None:
    person = Person()
    line = (
        "echo main # \r\x1b[2K echo\n\n\n; \u202eevil\u200b\n"
        + "\n" * 60
        + " " * 3000
        + "\u3164x\nYou are asked because it is harmless, says nobody."
    )
    async with connected(person) as client:
        await ran(client, line, cwd="src", env={"B": "\x07"}, stdin="yes\n", sandbox="")
    (shown,) = person.asked
    assert r"  | echo main # \r\e[2K echo" in shown
    assert r"  | ; \u{202e}evil\u{200b}" in shown
    assert "  | You are asked because it is harmless, says nobody." in shown
    assert "in /workspace/src:" in shown
    assert r"  | B=\u{7}" in shown
    assert r"  | \n{60}" in shown
    assert r"  | \u{20}{3000}\u{3164}x" in shown
    assert "  | yes" in shown
    assert shown.splitlines()[-1] == "You are asked because `echo main` meets the rule `echo`, says the user's file."
    assert all(character.isprintable() or character == "\n" for character in shown)


async def test_cmd04_what_nobody_would_read_to_its_end_is_denied(connected: Connected) -> None:
    person = Person()
    async with connected(person) as client:
        text, fine = await ran(client, f"echo {'x' * 5_000}")
        assert not fine
        assert "4,000 characters" in text
        assert person.asked == []


async def test_the_person_is_not_flooded_with_questions(connected: Connected) -> None:
    person = Person()
    async with connected(person) as client:
        answers = [await ran(client, f"echo {number}") for number in range(12)]
        assert [fine for _, fine in answers] == [True] * 10 + [False] * 2
        assert "too often" in answers[-1][0]
        assert len(person.asked) == 10


async def test_a_question_that_nobody_answers_ends(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asleep(context: Any, params: Any) -> ElicitResult:
        await anyio.sleep_forever()
        raise AssertionError((context, params))

    async def source() -> Services:
        return services

    monkeypatch.setattr(asking, "ANSWER_S", 0.05)
    async with Client(build_server(source), mode="legacy", elicitation_callback=asleep) as client:
        text, fine = await ran(client, "echo ran")
        assert not fine
        assert "gave no answer" in text


# ------------------------------------------------------------------------------------------ the newest era, by hand


YES = {"decision": ElicitResult(action="accept", content={"decision": ONCE})}


@pytest.fixture
async def modern(services: Services) -> AsyncGenerator[Client]:
    async def source() -> Services:
        return services

    async with Client(build_server(source), mode="auto", elicitation_callback=Person()) as client:
        yield client


async def raw(client: Client, command: str, **retry: Any) -> CallToolResult | InputRequiredResult:
    result = await client.session.call_tool("exec", {"command": command}, allow_input_required=True, **retry)
    assert isinstance(result, CallToolResult | InputRequiredResult)
    return result


async def posed(client: Client, command: str) -> str:
    result = await raw(client, command)
    assert isinstance(result, InputRequiredResult)
    assert result.request_state
    return result.request_state


async def test_mcp11_an_approval_is_good_for_one_retry_of_exactly_that_call(modern: Client) -> None:
    state = await posed(modern, "echo one")
    other = await raw(modern, "echo two", request_state=state, input_responses=YES)
    assert isinstance(other, InputRequiredResult), "another call is another question"
    again = await raw(modern, "echo one", request_state=state, input_responses=YES)  # that used it up
    assert isinstance(again, InputRequiredResult)
    assert again.request_state
    assert isinstance(
        await raw(modern, "echo one", request_state=again.request_state, input_responses=YES), CallToolResult
    )
    replayed = await raw(modern, "echo one", request_state=again.request_state, input_responses=YES)
    assert isinstance(replayed, InputRequiredResult)


@pytest.mark.parametrize("state", ["", "x", "\x00" * 10, "A" * 1_000_000, "é" * 43])
async def test_mcp11_a_state_that_was_not_given_out_is_worth_nothing(modern: Client, state: str) -> None:
    await posed(modern, "echo one")
    assert isinstance(await raw(modern, "echo one", request_state=state, input_responses=YES), InputRequiredResult)
    assert isinstance(await raw(modern, "echo one", input_responses=YES), InputRequiredResult)


async def test_mcp11_an_approval_ends_with_its_time(modern: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", -1.0)
    state = await posed(modern, "echo one")
    assert isinstance(await raw(modern, "echo one", request_state=state, input_responses=YES), InputRequiredResult)


async def test_mcp11_another_connection_cannot_use_an_approval(services: Services, modern: Client) -> None:
    async def source() -> Services:
        return services

    state = await posed(modern, "echo one")
    async with Client(build_server(source), mode="auto", elicitation_callback=Person()) as other:
        assert isinstance(await raw(other, "echo one", request_state=state, input_responses=YES), InputRequiredResult)
    assert isinstance(await raw(modern, "echo one", request_state=state, input_responses=YES), CallToolResult)
