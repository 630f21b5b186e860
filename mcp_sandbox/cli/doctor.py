"""`mcp-sandbox doctor`: every provider is opened and used once, for real."""

import argparse
import logging
import os
import platform
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace

import anyio

from mcp_sandbox import __version__
from mcp_sandbox.app import DEFAULT_PROVIDER, guarded_provider, template
from mcp_sandbox.cli.event_loop import run_loop
from mcp_sandbox.cli.options import add_json, parser
from mcp_sandbox.cli.running import until_signal
from mcp_sandbox.cli.tables import print_json
from mcp_sandbox.core.errors import InvalidRequestError, ProviderError, SandboxError
from mcp_sandbox.core.examination import Fence, Shortcoming
from mcp_sandbox.core.exec import ExecRequest, Exited
from mcp_sandbox.core.leftovers import EXPIRES
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId
from mcp_sandbox.providers import registry
from mcp_sandbox.store.directories import StateDirectories, open_state, state_root
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.store.record import now

__all__ = ["main"]

_LOG = logging.getLogger(__name__)
_EXAMPLE = "  mcp-sandbox doctor local"
_STEP_S = 60.0
_FOR_TESTS = frozenset({"memory"})


@dataclass(slots=True, kw_only=True)
class _Finding:
    """What came of one provider."""

    provider: str
    is_default: bool
    ok: bool = False
    isolation: str = ""
    failed_at: str = ""
    """The step that did not work."""
    why: str = ""
    fix: str = ""
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    """Of every step that worked."""
    fences: list[Fence] = field(default_factory=list[Fence])
    """What its self-test found."""
    shortcomings: list[Shortcoming] = field(default_factory=list[Shortcoming])
    """What this machine lacks although the provider works."""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    """What the provider stands on."""


def main(arguments: list[str]) -> int:
    """Try providers; 1 if the default one, or one that was asked for, does not work."""
    reader = parser(
        "doctor",
        "Open every provider, try what keeps its sandboxes apart from this machine, and create, use and destroy one. "
        "Says what does not work, why, and what to do. The exit status is 1 if the default provider, or one that was "
        "asked for, does not work.",
        _EXAMPLE,
    )
    reader.add_argument("providers", nargs="*", metavar="PROVIDER", help="only these (default: every known one)")
    add_json(reader)
    options = reader.parse_args(arguments)
    return run_loop(until_signal(lambda: _examine(options)))


async def _examine(options: argparse.Namespace) -> int:
    names: list[str] = options.providers or [name for name in registry.known() if name not in _FOR_TESTS]
    if not options.json:
        print(
            f"mcp-sandbox {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
        )
        print(f"state: {state_root(os.environ)}")
    findings: list[_Finding] = []
    for name in names:
        findings.append(await _tried(name))
        if not options.json:
            _print(findings[-1])
    if options.json:
        print_json([asdict(finding) for finding in findings])
    return 0 if all(finding.ok for finding in findings if finding.is_default or options.providers) else 1


def _print(finding: _Finding) -> None:
    name = f"{finding.provider}{' (default)' * finding.is_default}"
    if finding.ok:
        steps = ", ".join(f"{step} {taken:.1f} ms" for step, taken in finding.milliseconds.items())
        print(f"{name}: ok, isolation {finding.isolation}; {steps}")
    else:
        print(f"{name}: does not work here; {finding.failed_at} failed\n  why: {finding.why}\n  fix: {finding.fix}")
    for name, fact in finding.facts.items():
        print(f"  {name}: {fact}")
    for fence in finding.fences:
        print(f"  {'holds' if fence.holds else 'BROKEN':<7} {fence.name}{f': {fence.detail}' * bool(fence.detail)}")
    for lack in finding.shortcomings:
        print(f"  note: {lack.what}\n    why: {lack.why}\n    fix: {lack.fix}")
    sys.stdout.flush()


async def _tried(name: str) -> _Finding:
    finding = _Finding(provider=name, is_default=name == DEFAULT_PROVIDER)
    try:
        async with _step(finding, "state"):
            state = open_state()
        await _use(finding, state)
        finding.ok = True
    except SandboxError as error:
        finding.why, finding.fix = f"{error.what}: {error.why}", error.fix
    except Exception as error:  # noqa: BLE001 (one broken provider must not hide the others)
        _LOG.debug("provider %s", name, exc_info=True)
        finding.why, finding.fix = f"{type(error).__name__}: {error}", "Report this as a bug"
    return finding


async def _use(finding: _Finding, state: StateDirectories) -> None:
    async with _step(finding, "load"):
        provider = guarded_provider(finding.provider, state)
    async with _step(finding, "open"):
        await provider.__aenter__()
    try:
        finding.isolation = provider.capabilities.isolation.name.lower()
        async with _step(finding, "self-test"):
            await _examined(finding, provider)
        labels = {"mcp-sandbox.owner": "doctor", EXPIRES: now()}
        spec = replace(template(""), id=new_sandbox_id(), labels=labels, fetch_image=False)
        try:
            try:
                async with _step(finding, "create"):
                    sandbox = await provider.create(spec)
            except InvalidRequestError as error:  # no image: whoever only asks how things are wants none pulled
                finding.failed_at = ""
                lack = Shortcoming(what="no sandbox was made", why=error.why, fix=error.fix)
                finding.shortcomings = [*finding.shortcomings, lack]
                return
            async with sandbox, _step(finding, "exec"):
                await _say(sandbox, "it works")
        finally:
            await _destroy(finding, provider, spec.id)
    finally:
        with anyio.move_on_after(_STEP_S, shield=True):
            await provider.__aexit__(None, None, None)


async def _examined(finding: _Finding, provider: Provider) -> None:
    examination = await provider.examine()
    finding.fences, finding.shortcomings = [*examination.fences], [*examination.shortcomings]
    finding.facts = dict(examination.facts)
    if examination.broken:
        raise ProviderError(
            "This machine does not keep its sandboxes apart",
            why=", ".join(f"{fence.name} ({fence.detail})" for fence in examination.broken),
            fix="Use another provider or another machine for now, and report this",
        )


async def _destroy(finding: _Finding, provider: Provider, sandbox_id: SandboxId) -> None:
    with anyio.CancelScope(shield=True):
        async with _step(finding, "destroy"):
            await provider.destroy(sandbox_id)


async def _say(sandbox: Sandbox, word: str) -> None:
    output = b""
    async with await sandbox.exec(ExecRequest(argv=("echo", word), timeout_s=_STEP_S)) as execution:
        while not isinstance(event := await execution.receive(), Exited):
            output += event.data
    if event.result.exit_code != 0 or output.decode(errors="replace").strip() != word:
        raise ProviderError(
            "The first command did not work",
            why=f"`echo {word}` ended with {event.result} and said {output[:200]!r}",
            fix="Report this as a bug",
        )


@asynccontextmanager
async def _step(finding: _Finding, name: str) -> AsyncGenerator[None]:
    """Take the time of one step, and note it if it fails; the first failure counts."""
    started = time.perf_counter()
    try:
        with anyio.fail_after(_STEP_S):
            yield
    except TimeoutError:
        finding.failed_at = finding.failed_at or name
        raise ProviderError(
            "The engine does not answer", why=f"{name} took more than {_STEP_S:g} s", fix="Restart the engine"
        ) from None
    except Exception:
        finding.failed_at = finding.failed_at or name
        raise
    finding.milliseconds[name] = round((time.perf_counter() - started) * 1000, 2)
