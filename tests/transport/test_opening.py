"""What the preamble answers, against what the SDK's server answers in its place."""

import copy
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from handshakes import ENVELOPES, HANDSHAKES, INITIALIZED, VERSIONS, initialize, request
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from mcp_sandbox import __version__
from mcp_sandbox.service.services import Services
from mcp_sandbox.tools.catalog import tools_for
from mcp_sandbox.tools.listing import LIST_TTL_MS, SERVER_NAME, SERVER_TITLE, instructions, listed
from mcp_sandbox.tools.server import build_server
from mcp_sandbox.tools.tool import PROFILES
from mcp_sandbox.transport.opening import Announcement, Opening, is_plain_message
from mcp_sandbox.transport.plain_json import dump

__all__: list[str] = []

Message = Mapping[str, Any]
Ask = Callable[[Message], Awaitable[str]]
REFUSED = "the message did not reach the server"


async def _no_services() -> Services:
    raise AssertionError


@asynccontextmanager
async def _sdk(profile: str = "default", prefix: str = "") -> AsyncGenerator[Ask]:
    """Return what asks the SDK's server: the text of the answer to a request, or nothing for a notification."""
    to_server, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    outbound, from_server = anyio.create_memory_object_stream[SessionMessage](10)
    server = build_server(_no_services, profile=profile, prefix=prefix)

    async def ask(message: Message) -> str:
        try:
            parsed = jsonrpc_message_adapter.validate_json(json.dumps(message), by_name=False)
        except ValidationError:
            return REFUSED
        await to_server.send(SessionMessage(parsed))
        if "id" not in message:
            return ""
        with anyio.fail_after(10):
            answer = await from_server.receive()
        return answer.message.model_dump_json(by_alias=True, exclude_unset=True)

    async with to_server, inbound, outbound, from_server, anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, inbound, outbound, server.create_initialization_options())
        yield ask
        tasks.cancel_scope.cancel()


def _opening(profile: str = "default", prefix: str = "") -> Opening:
    tools = tools_for(profile, prefix)
    return Opening(
        Announcement(
            name=SERVER_NAME,
            title=SERVER_TITLE,
            version=__version__,
            instructions=instructions(tools, prefix),
            tools=listed(tools, prefix),
            ttl_ms=LIST_TTL_MS,
        )
    )


async def _compared(messages: Sequence[Message], profile: str = "default", prefix: str = "") -> int:
    """Check the answers up to the first that is left to the SDK; return how many there were."""
    opening = _opening(profile, prefix)
    answered = 0
    async with _sdk(profile, prefix) as ask:
        for message in messages:
            answer = None
            if "id" in message:
                answer = opening.answer(message) if is_plain_message(message) else None
                if answer is None:
                    break
            said = await ask(message)
            if answer is not None:
                assert dump(answer) == said
                answered += 1
    return answered


_QUESTIONS = ("ping", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "tools/list")


@pytest.mark.parametrize("prefix", ["", "box_"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("version", [*VERSIONS, "2026-07-28", "1999-01-01"])
async def test_every_revision_with_a_handshake_gets_the_answers_of_the_sdk(
    version: str, profile: str, prefix: str
) -> None:
    asked = [request(f"q{number}", method) for number, method in enumerate(_QUESTIONS)]
    asked += [request(number, method, {"_meta": {"progressToken": "t"}}) for number, method in enumerate(_QUESTIONS)]
    asked += [request(99, "tools/list", {"cursor": "next"})]
    messages = [request("é\n", "ping"), initialize(version), INITIALIZED, *asked]
    assert await _compared(messages, profile, prefix) == len(messages) - 1


@pytest.mark.parametrize("prefix", ["", "box_"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("envelope", ENVELOPES.values(), ids=ENVELOPES)
@pytest.mark.parametrize("first", ["server/discover", "tools/list"])
async def test_the_revision_without_a_handshake_gets_the_answers_of_the_sdk(
    first: str, envelope: Message, profile: str, prefix: str
) -> None:
    methods = (first, "server/discover", *(method for method in _QUESTIONS if method != "ping"))
    messages = [request(number, method, {"_meta": envelope}) for number, method in enumerate(methods)]
    messages.append(request("c", "tools/list", {"_meta": envelope, "cursor": "next"}))
    assert await _compared(messages, profile, prefix) == len(messages)


@pytest.mark.parametrize("params", HANDSHAKES.values(), ids=HANDSHAKES)
async def test_the_handshakes_of_clients_are_answered_at_once(params: Message) -> None:
    assert await _compared([request(0, "initialize", params), INITIALIZED, request(1, "tools/list", {})]) == 2


_PLAIN = [request(0, "initialize", HANDSHAKES["nothing"]), request(1, "tools/list")]
_ENVELOPED = {"_meta": ENVELOPES["nothing"]}


@pytest.mark.parametrize(
    "messages",
    [
        [request(1, "tools/list")],
        [request(1, "prompts/list")],
        [request(1, "server/discover")],
        [request(1, "ping", _ENVELOPED)],
        [request(1, "initialize", {**HANDSHAKES["nothing"], **_ENVELOPED})],
        [request(1, "initialize")],
        [request(1, "tools/call", {"name": "exec"})],
        [*_PLAIN, request(2, "initialize", HANDSHAKES["nothing"])],
        [*_PLAIN, request(2, "server/discover")],
        [*_PLAIN, request(2, "tools/list", _ENVELOPED)],
        [*_PLAIN, request(2, "tools/list", {"cursor": None})],
        [*_PLAIN, request(2, "logging/setLevel", {"level": "info"})],
        [*_PLAIN, request(2, "nonsense")],
        [request(1, "server/discover", _ENVELOPED), request(2, "tools/list")],
        [request(1, "server/discover", _ENVELOPED), request(2, "ping", _ENVELOPED)],
        [request(1, "server/discover", _ENVELOPED), initialize()],
        [request(1, "server/discover", _ENVELOPED), request(2, "subscriptions/listen", _ENVELOPED)],
    ],
)
async def test_the_rest_is_left_to_the_sdk(messages: Sequence[Message]) -> None:
    assert await _compared(messages) == len(messages) - 1


@pytest.mark.parametrize(
    "message",
    [
        [],
        "ping",
        [request(1, "ping")],
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {**request(1, "ping"), "result": {}},
        {**request(1, "ping"), "params": None},
        {**request(1, "ping"), "params": []},
        {**request(1, "ping"), "jsonrpc": "1.0"},
        request(None, "ping"),
        request(True, "ping"),
        request([], "ping"),
        {"jsonrpc": "2.0", "id": 1, "method": 7},
        {"jsonrpc": "2.0", "id": 1},
        {"id": 1, "method": "ping"},
    ],
)
def test_what_is_neither_a_request_nor_a_notification_is_not_taken_for_one(message: Any) -> None:
    assert not is_plain_message(message)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "1", "2026-07-28", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["src", "name", "x"]), inner),
    max_leaves=4,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container in a value with each of its keys, and a key that it does not have."""
    places: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        places += [(fields, name) for name in (*fields, "_meta", "cursor", "progressToken", "icons", "progress_token")]
        for field in fields.values():
            places += _places(field)
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        places += [(items, index) for index in range(len(items))]
        for item in items:
            places += _places(item)
    return places


@st.composite
def _bent(draw: st.DrawFn, messages: Sequence[Message]) -> list[Message]:
    """Return messages with something in them removed or replaced."""
    bent = copy.deepcopy(list(messages))
    for _ in range(draw(st.integers(1, 2))):
        container, key = draw(st.sampled_from(_places(bent)))
        if isinstance(container, dict) and draw(st.booleans()):
            cast("dict[str, Any]", container).pop(key, None)
        else:
            container[key] = draw(_JSON)
    return [message for message in bent if isinstance(cast("Any", message), dict)]


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([*HANDSHAKES.values()]).flatmap(
        lambda params: _bent([request(0, "initialize", params), request(1, "tools/list", {"_meta": {"a": 1}})])
    )
)
def test_a_handshake_is_either_left_to_the_sdk_or_answered_alike(messages: list[Message]) -> None:
    anyio.run(_compared, messages)


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([*ENVELOPES.values()]).flatmap(
        lambda envelope: _bent(
            [request(0, "server/discover", {"_meta": envelope}), request(1, "tools/list", {"_meta": envelope})]
        )
    )
)
def test_an_envelope_is_either_left_to_the_sdk_or_answered_alike(messages: list[Message]) -> None:
    anyio.run(_compared, messages)
