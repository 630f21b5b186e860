"""One fence left out at a time: the test that stands for it must fail then. So each of these tests is a control.

Fences are left out by building the plan, the filter or the program of a sandbox in another way, behind the back of the
self-test, which would let nothing run; nothing in the product can do that.
"""

import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.exec import Termination
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines import embedded, launcher, layered_sandbox, plan
from mcp_sandbox.engines.cgroups import Cgroup, Cgroups
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.engines.plan import NAMESPACES, sandbox_plan
from mcp_sandbox.engines.selftest import SelfTest
from mcp_sandbox.guest import build
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.confinement import ConfinementContract
from mcp_sandbox.testing.contract import Canary
from mcp_sandbox.testing.driving import new_spec, run, sh
from mcp_sandbox.testing.kernel import KernelContract
from tests.attacks.test_shared import (
    test_requests_of_asynchronous_io_are_not_taken_from_the_machine as ask_for_asynchronous_io,
)
from tests.attacks.test_shared import (
    test_res01_the_limit_of_processes_holds_for_all_ids_together as fill_with_processes,
)

Tokens = list[str]
Check = Callable[[Sandbox], Awaitable[None]]
Fence = Callable[[pytest.MonkeyPatch], None]

ALLOW_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
EVERY_CAPABILITY = f"{(1 << 41) - 1:x}"
NETWORK, PROCESSES, MESSAGES, NAMES = 0x40000000, 0x20000000, 0x08000000, 0x04000000

confinement, kernel = ConfinementContract(), KernelContract()


async def masked_files_of_proc_say_nothing(sandbox: Sandbox) -> None:
    """Fail if a file of /proc says something about the host that nobody inside needs to know."""
    names = " ".join(f"/proc/{name}" for name in plan._MASKED)  # pyright: ignore[reportPrivateUsage]
    assert (await sh(sandbox, f"cat {names} 2>/dev/null; test -e /proc/meminfo")).stdout == b""


def planned(change: Callable[[Tokens], Tokens]) -> Fence:
    """Return what leaves a fence out by changing the words of the plan."""

    def leave_out(patch: pytest.MonkeyPatch) -> None:
        def altered(*arguments: Any, **options: Any) -> bytes:
            words = sandbox_plan(*arguments, **options).decode().split("\0")[:-1]
            return b"".join(word.encode() + b"\0" for word in change(words))

        patch.setattr(embedded, "sandbox_plan", altered)

    return leave_out


def option(words: Tokens, name: str, value: str | None) -> Tokens:
    """Change an option of a plan, or leave it out."""
    at = words.index(name)
    return [*words[:at], *([] if value is None else [name, value]), *words[at + 2 :]]


def network(words: Tokens) -> Tokens:
    """Leave the sandbox in the host's network."""
    return ["loopback", "0", *option(words, "namespaces", str(NAMESPACES & ~NETWORK))]


def hostname(words: Tokens) -> Tokens:
    """Leave the sandbox with the host's name."""
    return option(option(words, "namespaces", str(NAMESPACES & ~NAMES)), "hostname", None)


def process_limit(words: Tokens) -> Tokens:
    """Let a sandbox have any number of processes."""
    at = next(i for i, word in enumerate(words) if re.fullmatch(r"6:\d+", word))
    words = words[: at - 1] + words[at + 1 :]
    return option(words, "processes", None) if "processes" in words else words


def without(step: str, *targets: str) -> Callable[[Tokens], Tokens]:
    """Leave steps on these targets out, on all of them if none is named."""

    def change(words: Tokens) -> Tokens:
        kept: Tokens = []
        for word in words:
            if kept and kept[-1] == step and (word in targets or not targets):
                kept.pop()
            else:
                kept.append(word)
        return kept

    return change


def no_filter(patch: pytest.MonkeyPatch) -> None:
    """Allow every system call."""

    def allow(*_: object, **__: object) -> bytes:
        return ALLOW_ALL

    patch.setattr(embedded, "build_filter", allow)


def environment(patch: pytest.MonkeyPatch) -> None:
    """Give commands the environment of the server."""
    patch.setattr(layered_sandbox, "ENVIRONMENT", {**plan.ENVIRONMENT, **os.environ})


def ready(patch: pytest.MonkeyPatch) -> None:
    """Let sandboxes run without a self-test."""

    async def pass_over(_: SelfTest) -> None: ...

    patch.setattr(SelfTest, "require", pass_over)


@asynccontextmanager
async def opened(state_directory: Path, *fences: Fence) -> AsyncGenerator[LocalProvider]:
    """Open a provider with some fences left out."""
    with pytest.MonkeyPatch.context() as patch:
        for fence in (ready, *fences):
            fence(patch)
        async with LocalProvider(state_directory) as provider:
            yield provider


@asynccontextmanager
async def fenced(state_directory: Path, *fences: Fence) -> AsyncGenerator[Sandbox]:
    """Make a sandbox with some fences left out."""
    async with opened(state_directory, *fences) as provider:
        spec = new_spec(provider.capabilities)
        try:
            async with await provider.create(spec) as sandbox:
                yield sandbox
        finally:
            await provider.destroy(spec.id)


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Canary:
    """A secret in the server's environment."""
    monkeypatch.setenv("MCP_SANDBOX_CONTRACT_CANARY", "canary-of-the-fences")
    return Canary("canary-of-the-fences", tmp_path / "canary")


FENCES: dict[str, tuple[Fence, Check]] = {
    "network: devices": (planned(network), confinement.test_net01_there_is_no_network_but_loopback),
    "network: services": (
        planned(network),
        partial(confinement.test_cr05_neither_the_hosts_services_nor_the_internet_answer, "python3"),
    ),
    "system calls": (no_filter, partial(kernel.test_priv03_dangerous_system_calls_are_refused, "python3")),
    "sockets": (no_filter, partial(kernel.test_sockets_that_leave_namespaces_are_refused, "python3")),
    "kernel settings": (
        planned(without("readonly", "/proc/sys")),
        kernel.test_fs15_no_setting_of_the_kernel_can_be_written,
    ),
    "capabilities": (
        planned(lambda words: option(words, "capabilities", EVERY_CAPABILITY)),
        kernel.test_priv01_programs_have_no_power_and_cannot_gain_any,
    ),
    "messages": (
        planned(lambda words: option(words, "namespaces", str(NAMESPACES & ~MESSAGES))),
        confinement.test_every_namespace_is_the_sandboxs_own,
    ),
    "hostname": (planned(hostname), confinement.test_the_hosts_name_is_not_the_sandboxs),
    "asynchronous io": (no_filter, ask_for_asynchronous_io),
    "masks": (planned(without("mask")), masked_files_of_proc_say_nothing),
}


@pytest.mark.parametrize(("fence", "check"), FENCES.values(), ids=FENCES)
async def test_without_a_fence_its_test_fails(state_directory: Path, fence: Fence, check: Check) -> None:
    """NET-01, CR-05, PRIV-01, PRIV-03, FS-15: and with it, passes."""
    async with fenced(state_directory) as sandbox:
        await check(sandbox)
    async with fenced(state_directory, fence) as sandbox:
        assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
        with pytest.raises(AssertionError):
            await check(sandbox)


async def test_without_the_fixed_environment_cr01_fails(state_directory: Path, canary: Canary) -> None:
    async with fenced(state_directory) as sandbox:
        await confinement.test_cr01_the_hosts_environment_is_not_in_a_commands(sandbox, canary)
    async with fenced(state_directory, environment) as sandbox:
        with pytest.raises(AssertionError):
            await confinement.test_cr01_the_hosts_environment_is_not_in_a_commands(sandbox, canary)


async def test_without_the_limit_of_processes_res01_fails(state_directory: Path) -> None:
    async with opened(state_directory, planned(process_limit)) as provider:
        with pytest.raises(AssertionError):
            await fill_with_processes(provider)
    async with opened(state_directory) as provider:
        await fill_with_processes(provider)


async def test_without_the_limit_of_memory_res02_fails(state_directory: Path) -> None:
    settings = Cgroups._settings  # pyright: ignore[reportPrivateUsage]

    def no_memory_limit(patch: pytest.MonkeyPatch) -> None:
        def careless(self: Cgroups, group: Cgroup, limits: Limits) -> object:
            return settings(self, group, replace(limits, memory_bytes=None))

        patch.setattr(Cgroups, "_settings", careless)

    async with opened(state_directory) as provider:
        if "memory_bytes" not in provider.capabilities.limits:
            pytest.skip("no memory limit is declared here")
        await fill_memory(provider)
    async with opened(state_directory, no_memory_limit) as provider:
        with pytest.raises(AssertionError):
            await fill_memory(provider)


async def fill_memory(provider: LocalProvider) -> None:
    """Fail unless a program that needs more than the limit is ended by it."""
    spec = new_spec(provider.capabilities, {"memory_bytes": 128 << 20})
    async with await provider.create(spec) as sandbox:
        ended = await run(sandbox, "dd", "if=/dev/zero", "of=/dev/null", "bs=400000000", "count=1")
    await provider.destroy(spec.id)
    assert ended.result.termination is Termination.OOM


@pytest.fixture
def planted() -> Iterator[Canary]:
    """A file of the host where everybody may go."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        canary = Canary("canary-in-a-file-of-the-host", Path(directory, "canary-in-a-file-of-the-host"))
        canary.file.write_text(canary.token)
        yield canary


async def test_with_a_directory_of_the_host_inside_fs01_fails(state_directory: Path, planted: Canary) -> None:
    async with fenced(state_directory) as sandbox:
        await confinement.test_fs01_a_file_of_the_host_is_found_nowhere(sandbox, planted)
    shown = planned(lambda words: [*words, "bind", "/mnt", str(planted.file.parent), "0"])
    async with fenced(state_directory, shown) as sandbox:
        with pytest.raises(AssertionError):
            await confinement.test_fs01_a_file_of_the_host_is_found_nowhere(sandbox, planted)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the host's root run commands")
async def test_with_the_hosts_root_inside_fs19_fails(state_directory: Path) -> None:
    def hosts_root(patch: pytest.MonkeyPatch) -> None:
        root = Identity(start=0, count=65_536, gid=0, owners=range(70_000, 90_000))
        patch.setattr(embedded, "choose_identity", lambda: root)

    async with fenced(state_directory) as sandbox:
        await kernel.test_fs19_the_hosts_root_is_nobody_inside(sandbox)
    async with fenced(state_directory / "of-root", hosts_root) as sandbox:
        with pytest.raises(AssertionError):
            await kernel.test_fs19_the_hosts_root_is_nobody_inside(sandbox)


async def test_without_a_namespace_of_processes_nothing_starts(state_directory: Path) -> None:
    """CR-03: the kernel shows nobody processes of a namespace that he does not own."""
    change = planned(lambda words: option(words, "namespaces", str(NAMESPACES & ~PROCESSES)))
    async with opened(state_directory, change) as provider:
        spec = new_spec(provider.capabilities)
        with pytest.raises(SandboxError):
            await provider.create(spec)
        assert spec.id not in {info.id for info in await provider.list()}


async def test_without_no_new_privs_nothing_runs_unless_capabilities_are_kept_too(
    state_directory: Path, tmp_path: Path
) -> None:
    """PRIV-01: the filter of system calls cannot be loaded then; this is what fails closed."""
    program = _compiled_without(tmp_path, "PR_SET_NO_NEW_PRIVS")

    def no_new_privs(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(launcher, "guest_binary", lambda: program)

    async with fenced(state_directory, no_new_privs) as sandbox:
        result = (await run(sandbox, "true")).result
        assert result.exit_code == 126
        assert "seccomp" in result.detail
    keep = planned(lambda words: option(words, "capabilities", EVERY_CAPABILITY))
    async with fenced(state_directory, no_new_privs, keep) as sandbox:
        assert b"NoNewPrivs:\t0" in (await run(sandbox, "cat", "/proc/self/status")).stdout
        with pytest.raises(AssertionError):
            await kernel.test_priv01_programs_have_no_power_and_cannot_gain_any(sandbox)


def _compiled_without(scratch: Path, call: str) -> bytes:
    """Return the guest program without the statement that holds a call."""
    source = Path(build.__file__).parent / "src"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    shutil.copytree(source, scratch / "src")
    setup = scratch / "src" / "setup.c"
    text, count = re.subn(rf"^.*\b{call}\b.*;$", "", setup.read_text(), flags=re.MULTILINE)
    assert count == 1
    setup.write_text(text)
    sources = sorted(str(path) for path in (scratch / "src").glob("*.c"))
    subprocess.run([compiler, "-std=gnu11", "-static", "-o", scratch / "guest", *sources], check=True)
    return (scratch / "guest").read_bytes()
