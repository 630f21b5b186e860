"""The MCP server: tools in, text out. Serves every protocol revision from 2024-11-05 to 2026-07-28.

Built on the SDK's low-level server, which leaves schemas and arguments to us. A tool that cannot do its work answers
with `isError` and a text the model can act on; JSON-RPC errors are for broken protocol only.
"""

import base64
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, InputRequiredResult, ListToolsResult, PaginatedRequestParams
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

from mcp_sandbox import __version__
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.service.services import Services
from mcp_sandbox.tools.asking import Asking, InputNeededError
from mcp_sandbox.tools.call import Answer, Call
from mcp_sandbox.tools.catalog import ALL_TOOLS, tools_for
from mcp_sandbox.tools.listing import LIST_TTL_MS, SERVER_NAME, SERVER_TITLE, instructions, listed
from mcp_sandbox.tools.schema import check_arguments, nearest
from mcp_sandbox.tools.tool import Tool, reworded

__all__ = ["DEFAULT_WINDOW_S", "ServicesSource", "build_server", "server_for"]

import_module("mcp_sandbox.tools.calls")  # now, so that no call has to wait for it

_LOG = logging.getLogger(__name__)

ServicesSource = Callable[[], Awaitable[Services]]
"""Returns the services, waiting for them if need be: tools are listed before any provider is opened."""

DEFAULT_WINDOW_S = 45.0
"""Seconds that a client surely waits: the shortest limit known is 60 (the TypeScript SDK's default)."""

_WINDOWS_S = {"claude-code": 100.0, "codex-mcp-client": 100.0}
"""By the name a client gives itself: Claude Code sends calls to the background after 120 s, Codex ends them at 300."""

_PROGRESS_INTERVAL_S = 0.25
_LIST_CACHE = CacheHint(ttl_ms=LIST_TTL_MS, scope="public")


def build_server(
    services: ServicesSource,
    *,
    profile: str = "default",
    prefix: str = "",
    window_s: float | None = None,
) -> Server[dict[str, Any]]:
    """Return a server for one client.

    Args:
        services: Where the use cases come from; awaited at every call, so it must be quick once they are there.
        profile: Which tools are listed.
        prefix: What every tool's name begins with.
        window_s: Seconds that the client waits for an answer; `None` goes by the client's name.
    """
    return server_for(services, tools_for(profile, prefix), prefix=prefix, window_s=window_s)


def server_for(
    services: ServicesSource, tools: tuple[Tool, ...], *, prefix: str = "", window_s: float | None = None
) -> Server[dict[str, Any]]:
    """Return a server of exactly these tools, whose names begin with `prefix`."""
    by_name = {tool.name: tool for tool in tools}
    names = {tool.name: f"{prefix}{tool.name}" for tool in ALL_TOOLS} if prefix else {}
    result = ListToolsResult.model_validate({"tools": listed(tools, prefix)}, by_name=False)

    async def list_tools(_: ServerRequestContext[dict[str, Any]], __: PaginatedRequestParams | None) -> ListToolsResult:
        return result

    asking = Asking()

    async def call_tool(
        context: ServerRequestContext[dict[str, Any]], params: CallToolRequestParams
    ) -> dict[str, Any] | InputRequiredResult:
        tool = by_name.get(params.name)
        if tool is None:
            return _as_result(_no_such_tool(params.name, tuple(by_name)))
        try:
            arguments = check_arguments(tool, params.arguments)
            call = Call(
                arguments=arguments,
                services=await services(),
                progress=_progress(context),
                prefix=prefix,
                window_s=window_s if window_s is not None else _window_s(context),
                ask=asking.during(context, params),
            )
            answer = await tool.handler(call)
        except InputNeededError as needed:
            return needed.result
        except Exception as error:  # noqa: BLE001 (the one place where errors become answers)
            answer = _failure(tool.name, error, params.arguments or {})
            answer = replace(answer, text=reworded(answer.text, names))
        return _as_result(answer)

    server = Server(
        SERVER_NAME,
        version=__version__,
        title=SERVER_TITLE,
        instructions=instructions(tools, prefix),
        on_list_tools=list_tools,
        cache_hints={"tools/list": _LIST_CACHE, "server/discover": _LIST_CACHE},
    )
    server.add_request_handler("tools/call", CallToolRequestParams, call_tool)
    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        server.middleware.clear()  # spans that nobody collects cost an eighth of a small call
    return server


def _window_s(context: ServerRequestContext[Any]) -> float:
    client = context.session.client_params
    return _WINDOWS_S.get(client.client_info.name, DEFAULT_WINDOW_S) if client is not None else DEFAULT_WINDOW_S


def _progress(context: ServerRequestContext[Any]) -> Callable[[str], Awaitable[None]]:
    """Return what reports progress, at most four times a second; the SDK drops it if the client did not ask."""
    started = time.monotonic()
    last_s = -_PROGRESS_INTERVAL_S

    async def report(line: str) -> None:
        nonlocal last_s
        elapsed_s = time.monotonic() - started
        if elapsed_s - last_s >= _PROGRESS_INTERVAL_S:
            last_s = elapsed_s
            await context.session.report_progress(round(elapsed_s, 3), message=_encodable(line))

    return report


def _as_result(answer: Answer) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": _encodable(answer.text)}]
    content += [
        {"type": "image", "data": base64.b64encode(image.data).decode("ascii"), "mimeType": image.mime_type}
        for image in answer.images
    ]
    result: dict[str, Any] = {"content": content, "isError": answer.is_error, "resultType": "complete"}
    if answer.structured is not None:
        result["structuredContent"] = dict(answer.structured)
    return result


def _encodable(text: str) -> str:
    """Return text that JSON can carry: surrogates, from names that are not UTF-8, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _no_such_tool(name: str, known: tuple[str, ...]) -> Answer:
    guess = nearest(name, known)
    hint = f"Did you mean {guess!r}? " if guess else ""
    return Answer(text=f"There is no tool {name!r}. {hint}The tools are: {', '.join(known)}.", is_error=True)


def _failure(tool: str, error: Exception, arguments: Mapping[str, Any]) -> Answer:
    error = _single(error)
    if isinstance(error, SandboxError):
        return Answer(text=str(error), is_error=True)
    if isinstance(error, OSError):
        return Answer(text=_path_failure(error, arguments), is_error=True)
    _LOG.error("tool %s failed unexpectedly", tool, exc_info=error)
    return Answer(
        text=f"{tool} failed for a reason of the server's own, not yours; its log on standard error has the details. "
        "Trying again may help; if it does not, go on without it and tell the user.",
        is_error=True,
    )


def _single(error: Exception) -> Exception:
    """Return what a task group wrapped, if that is one error."""
    while isinstance(error, ExceptionGroup):
        inner = list(cast("ExceptionGroup[Exception]", error).exceptions)
        if len(inner) > 1:
            break
        error = inner[0]
    return cast("Exception", error)


def _path_failure(error: OSError, arguments: Mapping[str, Any]) -> str:
    """Return what went wrong with a path, naming it only if the caller did: others may be the host's."""
    reason = error.strerror or type(error).__name__
    symbol = errno.errorcode.get(error.errno or 0, "")
    name = f" ({symbol})" if symbol else ""
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    given = [value for value in arguments.values() if isinstance(value, str) and value]
    if path and any(path == value or path.endswith("/" + value.removeprefix("./")) for value in given):
        return f"{path}: {reason}{name}."
    _LOG.info("a path failed: %r", error)
    return f"{reason}{name}."
