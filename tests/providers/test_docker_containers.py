"""What a sandbox is to the engine: hardened, labelled, bound to its connections; what is left when somebody dies."""

import gc
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import NotFoundError, ProviderUnavailableError, StateError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.leftovers import EXPIRES, Remembered
from mcp_sandbox.core.sandbox import SandboxState, Workspace, WorkspaceMode
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.driving import new_id, new_spec, put, read_file, run, sh, wait_for_file
from tests.containers.engines import NOTHING, Dockerd
from tests.providers.docker_sandboxes import inspected, is_running, provider_on, wait_until_stopped

__all__: list[str] = []

NOBODY = Remembered(sandbox=lambda _: False, snapshot=lambda _: False)
SERVER = """
import sys
from pathlib import Path
import anyio
from tests.providers.docker_sandboxes import provider_on
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxSpec

class Engine:
    host, base = sys.argv[1:3]

async def main():
    async with provider_on(Engine, Path(sys.argv[3])) as provider:
        sandbox = await provider.create(SandboxSpec(id=SandboxId(sys.argv[4]), limits=Limits()))
        script = "trap '' TERM HUP; setsid sleep 1234.5 & echo up > /workspace/up; sleep 1000"
        async with await sandbox.exec(ExecRequest(argv=("sh", "-c", script))):
            print("up", flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.fixture
async def provider(dockerd: Dockerd, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """A provider on an engine of our own."""
    async with provider_on(dockerd, tmp_path / "state") as provider:
        yield provider
        for info in await provider.list():
            await provider.destroy(info.id)


async def test_a_container_is_hardened_and_labelled(provider: DockerProvider, dockerd: Dockerd) -> None:
    spec = new_spec(provider.capabilities, {"memory_bytes": 256 << 20, "cpu_count": 1.5, "pids": 100})
    async with await provider.create(replace(spec, labels={"mcp-sandbox.owner": "somebody"})):
        found = inspected(dockerd, spec.id)
    host = found["HostConfig"]
    assert (host["NetworkMode"], host["Privileged"], host["CapDrop"]) == ("none", False, ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (256 << 20, 256 << 20, 100)
    assert host["NanoCpus"] == 1_500_000_000
    assert "/proc/sys" in host["ReadonlyPaths"]
    assert "/proc/kcore" in host["MaskedPaths"]
    assert (host["Binds"], host.get("Mounts"), found["Mounts"]) == (None, None, [])
    labels = found["Config"]["Labels"]
    assert (labels["mcp-sandbox.owner"], labels["mcp-sandbox.sandbox"]) == ("somebody", spec.id)
    assert "SECRET" not in str(found["Config"]["Env"])


async def test_variables_of_a_sandbox_are_not_told_by_the_engine(provider: DockerProvider, dockerd: Dockerd) -> None:
    """B-097: whoever may ask the engine does not learn them, and an image made from the sandbox has none."""
    spec = new_spec(provider.capabilities, env={"TOKEN": "canary-5f1c"})
    async with await provider.create(spec) as sandbox:
        assert b"canary-5f1c" in (await run(sandbox, "env")).stdout
        assert "canary-5f1c" not in str(inspected(dockerd, spec.id))


async def test_an_image_without_a_shell_has_files_and_says_what_is_missing(dockerd: Dockerd, tmp_path: Path) -> None:
    async with provider_on(dockerd, tmp_path / "state", image=NOTHING) as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await put(sandbox, "/workspace/a/file", b"data")
            assert await read_file(sandbox, "/workspace/a/file") == b"data"
            await put(sandbox, "/tmp/file", b"data")
            outcome = await run(sandbox, "sh", "-c", "true")
            assert (outcome.exit_code, "sh" in outcome.result.detail) == (127, True)
            assert b"sandbox:x:1000:1000:" in await read_file(sandbox, "/etc/passwd")
        await provider.destroy(spec.id)


def _saved_image(name: str, architecture: str) -> bytes:
    """Return what `docker save` would write of an image of nothing."""
    layer = bytes(1024)
    digest = hashlib.sha256(layer).hexdigest()
    config: dict[str, object] = {"architecture": architecture, "os": "linux", "config": {}}
    config["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    archive = io.BytesIO()
    files = {"config.json": json.dumps(config), "manifest.json": json.dumps(manifest)}
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, data in {**{path: text.encode() for path, text in files.items()}, "layer.tar": layer}.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive.getvalue()


async def test_an_image_for_another_architecture_is_refused(provider: DockerProvider, dockerd: Dockerd) -> None:
    dockerd.run("load", stdin=_saved_image("riscv:latest", "riscv64"))
    spec = replace(new_spec(provider.capabilities), image="riscv:latest")
    with pytest.raises(UnsupportedError, match="riscv64"):
        await provider.create(spec)
    assert not await provider.list()


async def test_an_unknown_runtime_is_refused_and_the_others_are_named(provider: DockerProvider) -> None:
    spec = replace(new_spec(provider.capabilities), runtime="nowhere")
    with pytest.raises(UnsupportedError, match="runc"):
        await provider.create(spec)
    assert not await provider.list()


async def test_a_runtime_that_is_not_what_its_name_says_is_found_out(dockerd: Dockerd, tmp_path: Path) -> None:
    """What the sandbox really runs on is looked at from inside, after it has started."""
    if "runsc" not in dockerd.runtimes:
        pytest.skip("no runsc here: tests/containers/install-runsc")
    async with provider_on(dockerd, tmp_path / "state", runtime="runsc") as provider:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            assert sandbox.capabilities.runtime == "runsc"
            assert sandbox.capabilities.isolation.name == "USER_KERNEL"
        async with await provider.attach(spec.id) as sandbox:
            assert sandbox.capabilities.isolation.name == "USER_KERNEL"
        await provider.destroy(spec.id)


async def test_doctor_learns_what_the_engine_is_and_what_it_cannot_limit(
    provider: DockerProvider, dockerd: Dockerd
) -> None:
    found = await provider.examine()
    assert dockerd.host in found.facts["engine"]
    assert "runc (container)" in found.facts["runtimes"]
    assert "limit inodes is not enforced" in [lack.what for lack in found.shortcomings]


async def test_doctor_attacks_a_throw_away_container(
    provider: DockerProvider, dockerd: Dockerd, tmp_path: Path
) -> None:
    """Every fence holds, around a kernel of its own, too, and nothing is left; a missing image is not pulled."""
    for runtime in ("runc", "runsc"):
        if runtime in ("runc", *dockerd.runtimes):
            async with provider_on(dockerd, tmp_path / "state", runtime=runtime) as examined:
                found = await examined.examine()
                assert [(fence.name, fence.detail) for fence in found.broken] == []
                assert len(found.fences) == 12
    assert not await provider.list()
    async with provider_on(dockerd, tmp_path / "other", image="not-here:latest") as without:
        found = await without.examine()
        assert not found.fences
        assert found.shortcomings[0].what == "no fence was tried"
        assert "docker pull not-here:latest" in found.shortcomings[0].fix


# -- the dead-man switch


async def test_sigkill_of_the_server_stops_the_container_within_five_seconds(
    provider: DockerProvider, dockerd: Dockerd, tmp_path: Path
) -> None:
    """Stopped, it is the kept sandbox: its files are there, its commands are not."""
    name, tree = new_id(), Path(__file__).parents[2]
    command = [sys.executable, "-c", SERVER, dockerd.host, dockerd.base, str(tmp_path / "state"), name]
    environ = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    async with await anyio.open_process(command, env=environ, stderr=None) as server:
        assert server.stdout is not None
        with anyio.fail_after(30):
            assert await server.stdout.receive() == b"up\n"
        server.kill()
        await server.wait()
        await wait_until_stopped(dockerd, name, within_s=5)
    async with await provider.attach(name) as sandbox:
        assert await read_file(sandbox, "/workspace/up") == b"up\n"
        assert b"1234.5" not in (await sh(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | sed 's/cat .*//'")).stdout


async def test_a_container_without_a_connection_stops_within_five_seconds(
    provider: DockerProvider, dockerd: Dockerd
) -> None:
    spec = new_spec(provider.capabilities)
    await (await provider.create(spec)).aclose()
    await wait_until_stopped(dockerd, spec.id, within_s=5)
    (info,) = await provider.list()
    assert (info.id, info.state) == (spec.id, SandboxState.STOPPED)


async def test_sigkill_of_init_loses_the_command_and_the_next_call_works(
    provider: DockerProvider, dockerd: Dockerd
) -> None:
    spec = new_spec(provider.capabilities)
    async with await provider.create(spec) as sandbox:
        await put(sandbox, "/workspace/kept", b"data")
        execution = await sandbox.exec(ExecRequest(argv=("sleep", "60")))
        await anyio.to_thread.run_sync(dockerd.run, "kill", f"mcp-sandbox-{spec.id}")
        with anyio.fail_after(10):
            assert (await execution.wait()).termination is Termination.LOST
        await execution.aclose()
        assert await read_file(sandbox, "/workspace/kept") == b"data"


# The SDK (docker 7.2) leaves a socket open that it cannot connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_sigkill_of_the_engine_in_the_middle_of_a_command(tmp_path: Path) -> None:
    """The call says that the sandbox ended, the next one that the engine is gone; once it is back, calls work."""
    if reason := Dockerd.why_not():
        pytest.skip(reason)
    with Dockerd() as engine:
        async with provider_on(engine, tmp_path / "state") as provider:
            spec = new_spec(provider.capabilities)
            async with await provider.create(spec) as sandbox:
                await put(sandbox, "/workspace/kept", b"data")
                script = "echo up > up; sleep 60"
                execution = await sandbox.exec(ExecRequest(argv=("sh", "-c", script)))
                await wait_for_file(sandbox, "/workspace/up")
                await anyio.to_thread.run_sync(engine.kill)
                with anyio.fail_after(10):
                    assert (await execution.wait()).termination is Termination.LOST
                await execution.aclose()
                with pytest.raises(ProviderUnavailableError, match="does not answer"):
                    await run(sandbox, "true")
                await anyio.to_thread.run_sync(engine.start)
                assert await read_file(sandbox, "/workspace/kept") == b"data"
                assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
            await provider.destroy(spec.id)
    gc.collect()


# -- whose they are


async def test_servers_of_two_state_directories_do_not_meet_each_others_containers(
    provider: DockerProvider, dockerd: Dockerd, tmp_path: Path
) -> None:
    spec = new_spec(provider.capabilities)
    await (await provider.create(spec)).aclose()
    await wait_until_stopped(dockerd, spec.id, within_s=5)
    async with provider_on(dockerd, tmp_path / "other") as other:
        assert not await other.list()
        with pytest.raises(NotFoundError):
            await other.attach(spec.id)
        assert not await other.collect(NOBODY, kept_s=0, now=time.time() + 1e6)
    assert [info.id for info in await provider.list()] == [spec.id]


async def test_what_nobody_remembers_is_collected_and_what_is_in_use_stays(
    provider: DockerProvider, dockerd: Dockerd
) -> None:
    forgotten, passing, used = (new_spec(provider.capabilities) for _ in range(3))
    passing = replace(passing, labels={EXPIRES: "2026-01-01T00:00:00Z"})
    for spec in (forgotten, passing):
        await (await provider.create(spec)).aclose()
        await wait_until_stopped(dockerd, spec.id, within_s=5)
    async with await provider.create(used):
        later = time.time() + 7200
        seen = await provider.collect(NOBODY, kept_s=86_400, now=later, dry_run=True)
        assert [(found.kind, found.name) for found in seen] == [("sandbox", passing.id)]
        assert is_running(dockerd, used.id)
        await provider.collect(NOBODY, kept_s=86_400, now=later)
        assert {info.id for info in await provider.list()} == {forgotten.id, used.id}
        gone = await provider.collect(NOBODY, kept_s=3600, now=later)
        assert [found.name for found in gone if found.kind == "sandbox"] == [forgotten.id]
        assert [info.id for info in await provider.list()] == [used.id]


async def test_a_container_whose_maker_was_killed_gives_way_to_a_new_one(
    provider: DockerProvider, dockerd: Dockerd
) -> None:
    spec = new_spec(provider.capabilities)
    dockerd.run("create", "--name", f"mcp-sandbox-{spec.id}", dockerd.base, "true")
    async with await provider.create(spec) as sandbox:
        assert (await run(sandbox, "echo", "works")).stdout == b"works\n"
        with pytest.raises(StateError):
            await provider.create(spec)


async def test_a_state_without_a_container_is_collected(provider: DockerProvider, dockerd: Dockerd) -> None:
    spec = new_spec(provider.capabilities)
    await (await provider.create(spec)).aclose()
    dockerd.run("rm", "--force", f"mcp-sandbox-{spec.id}")
    with pytest.raises(NotFoundError):
        await provider.attach(spec.id)
    gone = await provider.collect(NOBODY, kept_s=0, now=time.time())
    assert [(found.kind, found.name) for found in gone] == [("record", spec.id)]


def test_the_sdk_is_not_imported_before_an_engine_is_needed() -> None:
    script = "import sys; import mcp_sandbox.providers.docker; sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# -- the workspace


def _project(directory: Path, uid: int) -> Path:
    project = directory / "project"
    project.mkdir()
    (project / "file").write_text("of the host")
    for path in (project, project / "file"):
        os.chown(path, uid, uid)
    return project


async def test_a_mounted_project_is_written_as_its_owner(
    provider: DockerProvider, dockerd: Dockerd, tmp_path: Path
) -> None:
    project = _project(tmp_path, 1234)
    workspace = Workspace(mode=WorkspaceMode.MOUNT, source=str(project))
    spec = replace(new_spec(provider.capabilities), workspace=workspace)
    async with await provider.create(spec) as sandbox:
        assert await read_file(sandbox, "/workspace/file") == b"of the host"
        assert (await sh(sandbox, "echo new > made; echo more >> file; mkdir d; touch ~/home")).exit_code == 0
        await put(sandbox, "/workspace/written", b"by a file verb")
    assert (project / "file").read_text() == "of the hostmore\n"
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in project.iterdir()}
    assert owners == dict.fromkeys(("file", "made", "d", "written"), (1234, 1234))


async def test_a_project_of_roots_is_not_mounted(provider: DockerProvider, tmp_path: Path) -> None:
    """Its files would have to be written as root."""
    workspace = Workspace(mode=WorkspaceMode.MOUNT, source=str(_project(tmp_path, 0)))
    with pytest.raises(UnsupportedError, match="belongs to root"):
        await provider.create(replace(new_spec(provider.capabilities), workspace=workspace))
    assert not await provider.list()


async def test_a_copy_shows_nothing_of_what_the_host_changes_later(provider: DockerProvider, tmp_path: Path) -> None:
    project = _project(tmp_path, 0)
    workspace = Workspace(mode=WorkspaceMode.COPY, source=str(project))
    spec = replace(new_spec(provider.capabilities), workspace=workspace)
    async with await provider.create(spec) as sandbox:
        (project / "file").write_text("changed")
        await put(sandbox, "/workspace/inside", b"data")
        assert await read_file(sandbox, "/workspace/file") == b"of the host"
    assert [path.name for path in project.iterdir()] == ["file"]
