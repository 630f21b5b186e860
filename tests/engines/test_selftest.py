"""The self-test: every fence holds here, one that is left out is named, and what cannot be found out is no pass.

Fences are left out by building the plan of a sandbox in another way; nothing in the product can do that.
"""

import errno
import json
import os
import struct
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_sandbox.core.errors import ProviderError, ProviderUnavailableError
from mcp_sandbox.core.files import WriteRequest
from mcp_sandbox.core.image import ImageRequest, Recipe
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxSpec
from mcp_sandbox.engines import embedded, fences, launcher, layered_sandbox, selftest
from mcp_sandbox.engines.cgroups import Cgroup, Cgroups
from mcp_sandbox.engines.fences import FENCES, LIMIT_FENCES, Evidence, judge
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.engines.plan import ENVIRONMENT, NAMESPACES, sandbox_plan
from mcp_sandbox.engines.probing import LIMITED, Answer, answers, arguments
from mcp_sandbox.engines.project_quota import ProjectQuota
from mcp_sandbox.engines.selftest import SelfTest
from mcp_sandbox.guest.binary import guest_binary
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.driving import new_id, run

__all__: list[str] = []

Tokens = list[str]
Change = Callable[[Tokens], Tokens]

ALLOW_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
NEW = {"net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000}


@pytest.fixture
def root(state_directory: Path) -> Path:
    """A state directory in which nobody remembers a pass."""
    (state_directory / "selftest.json").unlink(missing_ok=True)
    return state_directory


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files that everybody may read."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def _planned(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    def plan(*arguments: Any, **options: Any) -> bytes:
        words = sandbox_plan(*arguments, **options).decode().split("\0")[:-1]
        return b"".join(word.encode() + b"\0" for word in change(words))

    monkeypatch.setattr(embedded, "sandbox_plan", plan)


def _option(words: Tokens, name: str, value: str | None) -> Tokens:
    """Change an option of a plan, or leave it out."""
    at = words.index(name)
    return [*words[:at], *([] if value is None else [name, value]), *words[at + 2 :]]


def _without_namespace(kind: str) -> Change:
    return lambda words: _option(words, "namespaces", str(NAMESPACES & ~NEW[kind]))


def _with_the_hosts_network(words: Tokens) -> Tokens:
    return ["loopback", "0", *_without_namespace("net")(words)]


def _with_the_hosts_name(words: Tokens) -> Tokens:
    return _option(_without_namespace("uts")(words), "hostname", None)


def _with_writable_settings(words: Tokens) -> Tokens:
    at = words.index("/proc/sys")
    return words[: at - 1] + words[at + 1 :]


def _with_every_capability(words: Tokens) -> Tokens:
    return _option(words, "capabilities", "1ffffffffff")


def _without_process_limit(words: Tokens) -> Tokens:
    at = next(i for i, word in enumerate(words) if word.startswith("6:"))
    words = words[: at - 1] + words[at + 1 :]
    return _option(words, "processes", None) if "processes" in words else words


async def _broken(root: Path) -> Mapping[str, str]:
    async with LocalProvider(root) as provider:
        examination = await provider.examine()
        assert (root / "selftest.json").exists() == (not examination.broken)
        limits = [name for limit, (name, _) in LIMIT_FENCES.items() if limit in provider.capabilities.limits]
        assert [fence.name for fence in examination.fences] == [*FENCES, *limits]
        lacking = {lack.what for lack in examination.shortcomings}
        assert "the limit memory cannot be enforced" in lacking or "memory limit" in limits
        if examination.broken:
            with pytest.raises(ProviderUnavailableError, match=examination.broken[0].name):
                await provider.create(SandboxSpec(id=new_id(), limits=Limits()))
        assert os.listdir(root / "sandboxes") == []
        return {fence.name: fence.detail for fence in examination.broken}


async def test_every_fence_holds_here(root: Path, temporary: Path) -> None:
    assert await _broken(root) == {}
    assert os.listdir(temporary) == []
    assert not [name for name in os.listdir(root) if "canary" in name]
    assert selftest.VARIABLE not in os.environ


async def test_a_pass_is_remembered_for_this_kernel_version_program_and_policy(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _counted(root, monkeypatch) as tried:
        assert tried == [1]
    async with _counted(root, monkeypatch) as tried:
        assert tried == []
    others: list[tuple[Any, str, Any]] = [
        (selftest, "__version__", "0.0.0"),
        (os, "uname", lambda: ("Linux", "host", "9.9.9", "#1", "x86_64")),
        (selftest, "guest_binary", lambda: b"another"),
        (selftest, "sandbox_plan", _anything),
    ]
    for module, name, value in others:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert not await _is_remembered(root)
    assert await _is_remembered(root)
    (root / "selftest.json").write_bytes(b'{"format": 1, "key": ')
    async with _counted(root, monkeypatch) as tried:
        assert tried == [1]
    assert all(fence["holds"] for fence in json.loads((root / "selftest.json").read_bytes())["fences"])


def _anything(*_: object, **__: object) -> bytes:
    return ALLOW_ALL


async def _is_remembered(root: Path) -> bool:
    async with LocalProvider(root) as provider:
        return provider._selftest._is_remembered()  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def _counted(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[list[int]]:
    """Use two sandboxes; yields one entry for every time that the fences were tried."""
    tried: list[int] = []

    def counting(found: Evidence) -> Sequence[fences.Fence]:
        tried.append(1)
        return judge(found)

    monkeypatch.setattr(selftest, "judge", counting)
    async with LocalProvider(root) as provider:
        for _ in range(2):
            spec = SandboxSpec(id=new_id())
            async with await provider.create(spec) as sandbox:
                assert (await run(sandbox, "true")).exit_code == 0
            await provider.destroy(spec.id)
    yield tried


@pytest.mark.parametrize(
    ("fence", "change"),
    [
        ("network", _with_the_hosts_network),
        ("ipc, hostname, cgroups", _without_namespace("ipc")),
        ("ipc, hostname, cgroups", _without_namespace("cgroup")),
        ("ipc, hostname, cgroups", _with_the_hosts_name),
        ("capabilities", _with_every_capability),
        ("kernel settings", _with_writable_settings),
        ("process limit", _without_process_limit),
    ],
    ids=["network", "ipc", "cgroup", "uts", "capabilities", "settings", "pids"],
)
async def test_a_fence_that_is_left_out_is_named_and_nothing_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, fence: str, change: Change
) -> None:
    _planned(monkeypatch, change)
    assert list(await _broken(root)) == [fence]


async def test_a_directory_of_the_host_inside_is_named(
    root: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _planned(monkeypatch, lambda words: [*words, "bind", "/mnt", str(temporary), "0"])
    found = await _broken(root)
    assert list(found) == ["files"]
    assert "/mnt/" in found["files"]


async def test_system_calls_that_are_not_refused_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "build_filter", _anything)
    assert list(await _broken(root)) == ["system calls"]


async def test_an_environment_that_is_not_cleaned_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layered_sandbox, "ENVIRONMENT", {**ENVIRONMENT, "AWS_SECRET_ACCESS_KEY": "x"})
    assert "AWS_SECRET_ACCESS_KEY" in (await _broken(root))["environment"]
    monkeypatch.undo()
    spawn = os.posix_spawn

    def careless(path: str, argv: list[str], _: Mapping[str, str], **options: Any) -> int:
        return spawn(path, argv, os.environ, **options)

    monkeypatch.setattr(launcher.os, "posix_spawn", careless)
    assert list(await _broken(root)) == ["environment"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the host's root run commands")
async def test_commands_of_the_hosts_root_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        embedded, "choose_identity", lambda: Identity(start=0, count=65_536, gid=0, owners=range(70_000, 90_000))
    )
    found = await _broken(root)
    assert list(found) == ["user", "process limit"]  # the kernel does not count what the host's root starts
    assert "Uid 0 of the host" in found["user"]


async def test_a_memory_limit_that_is_declared_and_does_not_hold_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Cgroups._settings  # pyright: ignore[reportPrivateUsage]

    def careless(self: Cgroups, group: Cgroup, limits: Limits) -> Sequence[tuple[Path, str]]:
        return settings(self, group, replace(limits, memory_bytes=None))

    async with LocalProvider(root) as provider:
        if "memory_bytes" not in provider.capabilities.limits:
            pytest.skip("no memory limit is declared here")
    monkeypatch.setattr(Cgroups, "_settings", careless)
    found = await _broken(root)
    assert list(found) == ["memory limit"]
    assert found["memory limit"].startswith("67,108,864 were not too much")


async def test_a_disk_limit_that_is_declared_and_does_not_hold_is_named(
    counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = counted / "state"
    async with LocalProvider(state) as provider:
        examination = await provider.examine()
    assert not examination.broken
    assert {"disk limit", "limit of files"} <= {fence.name for fence in examination.fences}

    def careless(*_: object) -> None: ...

    monkeypatch.setattr(ProjectQuota, "limit", careless)
    assert {"disk limit", "limit of files"} == set(await _broken(state))


# ------------------------------------------------------------------------------------------ the judgement alone


@pytest.fixture
async def evidence(root: Path, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    """What is found here."""
    kept: list[Evidence] = []

    def keep(found: Evidence) -> Sequence[fences.Fence]:
        kept.append(found)
        return judge(found)

    monkeypatch.setattr(selftest, "judge", keep)
    async with LocalProvider(root) as provider:
        await provider.examine()
    return kept[0]


def _names(found: Evidence) -> list[str]:
    return [fence.name for fence in judge(found) if not fence.holds]


def _inside(found: Evidence, **changes: Answer) -> Evidence:
    words = {name if name in LIMIT_FENCES else name.replace("_", " "): value for name, value in changes.items()}
    return replace(found, inside={**found.inside, **words})


async def test_the_judgement_names_what_cannot_be_left_out_for_real(evidence: Evidence) -> None:
    assert _names(evidence) == []
    status = evidence.inside["status"].content
    canary = f"canary /proc/1/root{evidence.bait.canaries[0]}"
    doctored: list[tuple[str, Evidence]] = [
        ("no_new_privs", _inside(evidence, status=Answer(0, status.replace(b"NoNewPrivs:\t1", b"NoNewPrivs:\t0")))),
        ("system calls", _inside(evidence, status=Answer(0, status.replace(b"Seccomp:\t2", b"Seccomp:\t0")))),
        ("processes", _inside(evidence, numbers=Answer(0, b"1\0002\00077\0"))),
        ("processes", _inside(evidence, reach_server=Answer(0, b""))),
        ("init", _inside(evidence, trace_init=Answer(0, b""))),
        ("init", _inside(evidence, init_environment=Answer(0, b""))),
        ("descriptors", _inside(evidence, descriptors=Answer(0, b"0\0001\0002\0003\0007\0"))),
        ("environment", _inside(evidence, processes=Answer(0, evidence.bait.secret.encode()))),
        ("files", replace(evidence, inside={**evidence.inside, canary: Answer(0, evidence.bait.token.encode())})),
        ("network", _inside(evidence, devices=Answer(0, evidence.inside["devices"].content + b"  eth0: 0\n"))),
        ("user", replace(evidence, status={**evidence.status, "Uid": "0 0 0 0"})),
        ("processes", _inside(evidence, namespace_pid=Answer(0, evidence.host_namespaces["pid"].encode()))),
    ]
    for fence, found in doctored:
        assert _names(found) == [fence], fence


async def test_a_probe_that_finds_nothing_proves_nothing(evidence: Evidence) -> None:
    blind = Answer(errno.ENOENT, b"")
    everything = {*FENCES, *(LIMIT_FENCES[limit][0] for limit in evidence.limits)}
    assert set(_names(replace(evidence, inside=dict.fromkeys(evidence.inside, blind)))) == everything
    assert set(_names(replace(evidence, inside={}, control={}, status={}, host_namespaces={}))) == everything
    for limit, (fence, _) in LIMIT_FENCES.items():
        if limit in evidence.limits:
            assert _names(_inside(evidence, **{limit: Answer(errno.ENOMEM, b"0")})) == [fence]
    for name, fence in (("connect", "network"), ("processes", "environment"), ("reach server", "processes")):
        assert _names(replace(evidence, control={**evidence.control, name: blind})) == [fence]
    for name, fence in (("search inside", "files"), ("allowed", "system calls"), ("change nothing", "kernel settings")):
        assert _names(replace(evidence, inside={**evidence.inside, name: blind})) == [fence]


async def test_limits_of_disk_and_files_are_judged_by_what_there_was_room_for(evidence: Evidence) -> None:
    limits = {"disk_bytes": LIMITED["disk_bytes"], "inodes": LIMITED["inodes"]}
    met = {name: Answer(errno.EDQUOT, b"%d" % (most - 40)) for name, most in limits.items()}
    found = _inside(replace(evidence, limits={**evidence.limits, **limits}), **met)
    assert _names(found) == []
    for name in limits:
        for answer in (Answer(0, b"%d" % (2 * limits[name])), Answer(errno.EACCES, b"0"), Answer(errno.EDQUOT, b"")):
            assert _names(_inside(found, **{name: answer})) == [LIMIT_FENCES[name][0]]


async def test_the_probe_finds_where_room_ends(root: Path) -> None:
    """On a file system in memory, of 64 MiB and 65,536 files: not every machine has quotas to try it with."""
    asked = {
        "all": ("fill", "/dev/shm/all", str(200 << 20)),
        "some": ("fill", "/dev/shm/some", str(1 << 20)),
        "files": ("files", "/dev/shm/files", "70000"),
    }
    async with LocalProvider(root) as provider, await provider.create(SandboxSpec(id=new_id())) as sandbox:
        await sandbox.write(WriteRequest(path="/tmp/probe", mode=0o755), guest_binary())
        said = await run(sandbox, "/tmp/probe", "probe", *arguments(asked))
        found = answers(asked, said.stdout)
        await provider.destroy(sandbox.id)
    assert (found["all"].error, int(found["all"].text)) == (errno.ENOSPC, 64 << 20)
    assert found["some"] == Answer(0, b"%d" % (1 << 20))
    assert found["files"].error == errno.ENOSPC
    assert 60_000 < int(found["files"].text) < 65_536


async def test_a_self_test_that_breaks_is_not_a_pass(root: Path) -> None:
    async def fail(_: SandboxSpec) -> Any:
        raise ProviderError("No sandbox", why="it broke", fix="Mend it")

    async def destroy(_: SandboxId) -> None: ...

    async with LocalProvider(root) as provider:
        broken = SelfTest(provider._engine, fail, destroy)  # pyright: ignore[reportPrivateUsage]
        for _ in range(2):
            with pytest.raises(ProviderUnavailableError, match=r"self-test was not carried out.*it broke"):
                await broken.require()
    assert not (root / "selftest.json").exists()


async def test_no_image_is_built_where_a_fence_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the packages bring would run in a sandbox that nobody had tried."""
    _planned(monkeypatch, _with_the_hosts_network)
    recipe = Recipe(distribution="debian", suite="bookworm", mirror="file:///missing")
    async with LocalProvider(root) as provider:
        with pytest.raises(ProviderUnavailableError, match="network"):
            await provider.add_image(ImageRequest(name="image", recipe=recipe))
