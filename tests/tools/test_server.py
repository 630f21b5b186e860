"""The server as the SDK's own client meets it, in both eras of the protocol."""

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import pytest
from mcp import Client
from mcp_types import Implementation, TextContent

from mcp_sandbox.app import open_services
from mcp_sandbox.core.errors import NotFoundError
from mcp_sandbox.service.services import Services
from mcp_sandbox.tools.call import Answer, Call, Image
from mcp_sandbox.tools.server import DEFAULT_WINDOW_S, build_server, server_for
from mcp_sandbox.tools.tool import Tool

__all__: list[str] = []

Era = Literal["auto", "legacy"]
Caller = Callable[..., Awaitable[tuple[str, bool]]]


_SAY_IT = ("read_file", "write_file", "edit_file", "list_files", "search_files", "changes", "apply_changes")
"""Tools whose names say what a title would."""


@pytest.fixture(params=["auto", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture
async def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Services]:
    monkeypatch.setenv("MCP_SANDBOX_HOME", str(tmp_path / "state"))
    async with open_services(provider="memory") as opened:
        yield opened


@pytest.fixture
async def client(services: Services, era: Era) -> AsyncGenerator[Client]:
    async def source() -> Services:
        return services

    async with Client(build_server(source, profile="full"), mode=era) as opened:
        yield opened


async def _no_services() -> Services:
    return cast("Services", None)


def _server_of(handler: Callable[[Call], Awaitable[Answer]], **properties: dict[str, Any]) -> Any:
    tool = Tool(name="probe", title="Probe", description="A probe.", handler=handler, properties=properties)
    return server_for(_no_services, (tool,))


async def _text(client: Client, tool: str, arguments: dict[str, Any] | None = None) -> tuple[str, bool]:
    result = await client.call_tool(tool, arguments or {})
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text, bool(result.is_error)


async def test_tools_are_listed_with_every_annotation_and_a_closed_schema(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == [
        *("exec", "job", "read_file", "write_file", "edit_file", "list_files", "search_files"),
        *("snapshot_create", "snapshot_list", "snapshot_restore", "snapshot_delete"),
        *(
            "sandbox_create",
            "sandbox_fork",
            "sandbox_list",
            "sandbox_destroy",
            "changes",
            "apply_changes",
            "expose_port",
        ),
    ]
    for tool in tools:
        assert tool.description
        assert tool.title or tool.name in _SAY_IT
        assert tool.annotations is not None
        hints = tool.annotations.model_dump(exclude_none=True)
        assert {"read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint"} <= hints.keys()
        assert tool.input_schema["additionalProperties"] is False
        assert "sandbox" in tool.input_schema["properties"] or tool.name.startswith(("sandbox_", "snapshot_"))


async def test_the_list_never_changes_and_says_so(client: Client) -> None:
    assert client.server_capabilities.tools is not None
    assert not client.server_capabilities.tools.list_changed


async def test_instructions_are_short(client: Client) -> None:
    assert client.instructions
    assert len(client.instructions) <= 1_500


async def test_b086_a_command_runs_without_any_create_step(client: Client) -> None:
    text, is_error = await _text(client, "exec", {"command": "echo hi"})
    assert text.startswith("exit=0 ")
    assert text.endswith("\nhi")
    assert not is_error


async def test_a_failing_command_is_an_answer_and_no_error(client: Client) -> None:
    text, is_error = await _text(client, "exec", {"command": "false"})
    assert text.startswith("exit=1 ")
    assert not is_error


async def test_a_file_goes_in_and_comes_out(client: Client) -> None:
    assert not (await _text(client, "write_file", {"file_path": "a.txt", "content": '{"a": 1}\n'}))[1]
    text, is_error = await _text(client, "read_file", {"file_path": "a.txt"})
    assert '{"a": 1}' in text
    assert not is_error


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("exce", {}, ["no tool 'exce'", "'exec'"]),
        ("exec", {"command": "true", "timeot_s": 5}, ["'timeot_s'", "'timeout_s'"]),
        ("exec", {}, ["'command' is missing"]),
        ("exec", {"command": "true", "sandbox": "nowhere"}, ["nowhere"]),
        ("job", {"action": "outputs"}, ["'output'"]),
        ("job", {"action": "kill"}, ["`job_id` is missing"]),
        ("job", {"job_id": "j9"}, ["No job 'j9'"]),
        ("read_file", {"file_path": "missing.txt"}, ["missing.txt"]),
    ],
)
async def test_what_cannot_be_done_is_an_error_that_says_what_to_do(
    client: Client, tool: str, arguments: dict[str, Any], words: list[str]
) -> None:
    text, is_error = await _text(client, tool, arguments)
    assert is_error
    assert all(word in text for word in words), text


async def test_tools_are_listed_before_the_services_are_there(era: Era) -> None:
    async def never() -> Services:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(10):
        async with Client(build_server(never, profile="minimal"), mode=era) as client:
            tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == ["exec", "read_file", "write_file"]


async def test_a_prefix_is_in_names_and_in_what_tools_say_of_each_other(services: Services) -> None:
    async def source() -> Services:
        return services

    async with Client(build_server(source, prefix="box_"), mode="auto") as client:
        tools = (await client.list_tools()).tools
        assert all(tool.name.startswith("box_") for tool in tools)
        assert "`box_job`" in (tools[0].description or "")
        assert "`box_exec`" in (client.instructions or "")
        assert (await _text(client, "box_exec", {"command": "echo hi"}))[0].endswith("hi")


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("snapshot_restore", {"snapshot": "00000000"}, "snapshot_create"),
        ("snapshot_list", {}, "snapshot_create"),
        ("job", {"action": "output"}, "job"),
        ("read_file", {"file_path": "/nosuch"}, "list_files"),
    ],
)
async def test_answers_and_errors_name_tools_as_they_are_listed(
    services: Services, tool: str, arguments: dict[str, Any], named: str
) -> None:
    async def source() -> Services:
        return services

    await services.sandboxes.create(name="one")
    for prefix in ("", "box_"):
        async with Client(build_server(source, prefix=prefix), mode="auto") as client:
            text, _ = await _text(client, f"{prefix}{tool}", arguments)
            assert f"`{prefix}{named}`" in text
            listed = {one.name for one in (await client.list_tools()).tools}
            assert {word for word in re.findall(r"`(\w+_\w+)`", text) if word != "job_id"} <= listed


async def test_pictures_and_facts_are_carried(era: Era) -> None:
    async def handler(_: Call) -> Answer:
        return Answer(text="t", structured={"a": 1}, images=(Image(b"\x89PNG", "image/png"),))

    async with Client(_server_of(handler), mode=era) as client:
        result = await client.call_tool("probe")
    assert result.structured_content == {"a": 1}
    assert [block.type for block in result.content] == ["text", "image"]
    assert getattr(result.content[1], "data", "") == "iVBORw=="


async def test_names_that_are_not_utf8_do_not_break_the_answer(era: Era) -> None:
    async def handler(_: Call) -> Answer:
        return Answer(text="caf\udce9 \ud83d\ude42")

    async with Client(_server_of(handler), mode=era) as client:
        assert await _text(client, "probe") == ("caf\ufffd \U0001f642", False)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotFoundError("No such thing", why="it is gone", fix="Make one"), "No such thing: it is gone. Make one."),
        (FileNotFoundError(2, "No such file or directory", "/workspace/a"), "/workspace/a: No such file or directory"),
        (ExceptionGroup("g", [IsADirectoryError(21, "Is a directory", "a")]), "a: Is a directory (EISDIR)."),
    ],
)
async def test_errors_become_text(era: Era, error: Exception, text: str) -> None:
    async def handler(_: Call) -> Answer:
        raise error

    async with Client(_server_of(handler, path={"type": "string", "description": "p"}), mode=era) as client:
        said, is_error = await _text(client, "probe", {"path": "a"})
    assert is_error
    assert said.startswith(text)


async def test_paths_of_the_host_do_not_reach_the_model(era: Era) -> None:
    async def handler(_: Call) -> Answer:
        raise PermissionError(13, "Permission denied", "/home/me/.local/share/mcp-sandbox/registry/x")

    async with Client(_server_of(handler), mode=era) as client:
        assert await _text(client, "probe") == ("Permission denied (EACCES).", True)


async def test_an_unexpected_failure_is_logged_and_its_insides_stay_here(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(_: Call) -> Answer:
        raise RuntimeError("secret detail")

    with caplog.at_level(logging.ERROR):
        async with Client(_server_of(handler), mode=era) as client:
            text, is_error = await _text(client, "probe")
    assert is_error
    assert "secret detail" not in text
    assert "secret detail" in caplog.text


async def test_b118_progress_is_sent_at_most_four_times_a_second(era: Era) -> None:
    heard: list[tuple[float, str | None]] = []

    async def handler(call: Call) -> Answer:
        for number in range(60):
            await call.progress(f"line {number}")
            await anyio.sleep(0.01)
        return Answer(text="done")

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        heard.append((progress, message))

    async with Client(_server_of(handler), mode=era) as client:
        await client.call_tool("probe", progress_callback=listen)
        with anyio.fail_after(5):
            while len(heard) < 2:
                await anyio.sleep(0.01)
    assert heard[0][1] == "line 0"
    assert 2 <= len(heard) <= 4
    assert [value for value, _ in heard] == sorted({value for value, _ in heard})


async def test_without_a_token_progress_is_not_sent(era: Era) -> None:
    async def handler(call: Call) -> Answer:
        await call.progress("nobody listens")
        return Answer(text="done")

    async with Client(_server_of(handler), mode=era) as client:
        assert await _text(client, "probe") == ("done", False)


async def test_b113_cancelling_a_call_reaches_its_handler(era: Era) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def handler(_: Call) -> Answer:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    async with Client(_server_of(handler), mode=era) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "probe")
            await begun.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            await ended.wait()


@pytest.mark.parametrize(("name", "longer"), [("claude-code", True), ("nobody-knows", False)])
async def test_b001_how_long_a_call_may_take_depends_on_the_client(era: Era, name: str, longer: bool) -> None:
    async def handler(call: Call) -> Answer:
        return Answer(text=str(call.window_s > DEFAULT_WINDOW_S))

    server = _server_of(handler)
    async with Client(server, mode=era, client_info=Implementation(name=name, version="1")) as client:
        assert (await _text(client, "probe"))[0] == str(longer)
