"""Create, find again, list, destroy; and every optional verb in both directions."""

from dataclasses import replace

import anyio
import pytest

from mcp_sandbox.core.capability import Capabilities, Facet, NetworkMode, Support, Verb
from mcp_sandbox.core.differences import DiffRequest
from mcp_sandbox.core.errors import NotFoundError, SandboxError, SandboxGoneError, StateError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest, Termination
from mcp_sandbox.core.files import ReadRequest
from mcp_sandbox.core.image import ImageRequest
from mcp_sandbox.core.ports import DialRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.sandbox import SandboxId, SandboxInfo, SandboxState
from mcp_sandbox.core.snapshot import NativeContent, SnapshotRequest
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import HANG_S, drain, entries, new_id, new_spec, put, read_file, run

__all__ = ["LifecycleContract"]


async def _listed(provider: Provider, sandbox_id: SandboxId) -> SandboxInfo | None:
    """Return what the engine says of a sandbox, if it lists it."""
    return next((info for info in await provider.list() if info.id == sandbox_id), None)


class LifecycleContract(Contract):
    """The life of a sandbox, seen from outside."""

    async def test_b087_a_new_sandbox_works_at_once(self, provider: Provider) -> None:
        """B-087: `create` returns when the first command will work, not before."""
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            assert sandbox.id == spec.id
            assert sandbox.provider_name == provider.name
            assert (await run(sandbox, "echo", "ready")).stdout == b"ready\n"
        await provider.destroy(spec.id)

    async def test_a_new_sandbox_has_an_empty_workspace_and_a_place_for_temporary_files(self, sandbox: Sandbox) -> None:
        assert await entries(sandbox, "/workspace") == {}
        await put(sandbox, "/tmp/file", b"x")
        assert await read_file(sandbox, "/tmp/file") == b"x"

    async def test_a_sandbox_is_listed_with_its_labels(self, provider: Provider) -> None:
        labels = {"mcp-sandbox.owner": "somebody", "mcp-sandbox.expires": "2030-01-01T00:00:00Z"}
        spec = replace(new_spec(provider.capabilities), labels=labels)
        async with await provider.create(spec) as sandbox:
            await run(sandbox, "true")
            info = await _listed(provider, spec.id)
        assert info is not None
        assert info.state is SandboxState.RUNNING
        assert labels.items() <= info.labels.items()
        await provider.destroy(spec.id)

    async def test_a_second_sandbox_with_the_same_id_is_refused_and_harms_nothing(
        self, provider: Provider, sandbox: Sandbox
    ) -> None:
        await put(sandbox, "/workspace/file", b"mine")
        with pytest.raises(StateError):
            await provider.create(replace(new_spec(provider.capabilities), id=sandbox.id))
        assert await read_file(sandbox, "/workspace/file") == b"mine"

    async def test_files_stay_when_everybody_lets_go(self, provider: Provider) -> None:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await put(sandbox, "/workspace/file", b"kept")
        async with await provider.attach(spec.id) as again:
            assert again.id == spec.id
            assert await read_file(again, "/workspace/file") == b"kept"
            assert (await run(again, "echo", "works")).stdout == b"works\n"
        await provider.destroy(spec.id)

    async def test_variables_of_the_spec_hold_after_attaching_again(self, provider: Provider) -> None:
        spec = new_spec(provider.capabilities, env={"KEPT": "yes"})
        await (await provider.create(spec)).aclose()
        async with await provider.attach(spec.id) as again:
            assert b"KEPT=yes\n" in (await run(again, "env")).stdout
        await provider.destroy(spec.id)

    async def test_two_connections_see_one_sandbox_and_end_apart(self, provider: Provider, sandbox: Sandbox) -> None:
        async with await provider.attach(sandbox.id) as second:
            await put(second, "/workspace/file", b"shared")
            assert await read_file(sandbox, "/workspace/file") == b"shared"
            async with await sandbox.exec(ExecRequest(argv=("cat",), stdin=True)) as execution:
                await second.aclose()
                await execution.write_stdin(b"alive")
                await execution.close_stdin()
                assert (await drain(execution)).stdout == b"alive"

    async def test_attaching_to_an_unknown_id_says_not_found(self, provider: Provider) -> None:
        with pytest.raises(NotFoundError):
            await provider.attach(new_id())

    async def test_sandboxes_do_not_share_files(self, provider: Provider, sandbox: Sandbox) -> None:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as other:
            for place in ("/workspace", "/tmp"):
                await put(sandbox, f"{place}/mine", b"1")
                with pytest.raises(FileNotFoundError):
                    await other.read(ReadRequest(path=f"{place}/mine"))
        await provider.destroy(spec.id)

    async def test_closing_twice_is_a_no_op(self, provider: Provider) -> None:
        spec = new_spec(provider.capabilities)
        sandbox = await provider.create(spec)
        await sandbox.aclose()
        await sandbox.aclose()
        await provider.destroy(spec.id)

    # -- destroy

    async def test_a_destroyed_sandbox_is_neither_listed_nor_found(self, provider: Provider) -> None:
        spec = new_spec(provider.capabilities)
        await (await provider.create(spec)).aclose()
        await provider.destroy(spec.id)
        assert await _listed(provider, spec.id) is None
        with pytest.raises(NotFoundError):
            await provider.attach(spec.id)

    async def test_destroying_what_is_not_there_is_a_no_op(self, provider: Provider) -> None:
        await provider.destroy(new_id())

    async def test_a_destroyed_id_can_be_used_again_and_starts_empty(self, provider: Provider) -> None:
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as sandbox:
            await put(sandbox, "/workspace/file")
        await provider.destroy(spec.id)
        async with await provider.create(spec) as sandbox:
            assert await entries(sandbox, "/workspace") == {}
        await provider.destroy(spec.id)

    async def test_destroying_a_sandbox_in_use_ends_its_commands_and_later_calls_say_so(
        self, provider: Provider
    ) -> None:
        spec = new_spec(provider.capabilities)
        sandbox = await provider.create(spec)
        execution = await sandbox.exec(ExecRequest(argv=("sleep", "60")))
        with anyio.fail_after(HANG_S):
            await provider.destroy(spec.id)
            result = await execution.wait()
        assert result.exit_code is None
        assert result.termination in (Termination.LOST, Termination.KILLED)
        with pytest.raises(SandboxGoneError):
            await sandbox.exec(ExecRequest(argv=("true",)))
        with pytest.raises((SandboxError, OSError)):
            await sandbox.read(ReadRequest(path="/workspace"))
        await execution.aclose()
        await sandbox.aclose()

    # -- capabilities, both directions

    async def test_what_is_declared_is_sound(self, capabilities: Capabilities) -> None:
        assert capabilities.max_concurrent >= 1
        assert NetworkMode.NONE in capabilities.network or capabilities.network
        assert capabilities.supports(Verb.SNAPSHOT) is bool(capabilities.snapshot_holds)
        assert all(isinstance(support.support, Support) for support in capabilities.verbs.values())
        assert "/workspace".startswith(capabilities.writable_roots)

    async def test_a_sandbox_declares_at_most_what_its_provider_does(
        self, capabilities: Capabilities, sandbox: Sandbox
    ) -> None:
        assert {verb for verb in Verb if sandbox.capabilities.supports(verb)} <= {
            verb for verb in Verb if capabilities.supports(verb)
        }
        assert sandbox.capabilities.limits <= capabilities.limits

    @pytest.mark.parametrize("mode", NetworkMode)
    async def test_an_undeclared_network_mode_is_refused_before_anything_is_made(
        self, provider: Provider, mode: NetworkMode
    ) -> None:
        """B-099: what cannot be enforced is refused, never approximated."""
        if mode in provider.capabilities.network:
            pytest.skip(f"the provider declares network mode {mode.value!r}")
        spec = replace(new_spec(provider.capabilities), network=mode)
        with pytest.raises(UnsupportedError):
            await provider.create(spec)
        assert await _listed(provider, spec.id) is None

    async def test_an_image_that_does_not_exist_is_refused_before_anything_is_made(self, provider: Provider) -> None:
        spec = replace(new_spec(provider.capabilities), image="no-such-registry.invalid/no/such:image")
        with pytest.raises(SandboxError):
            await provider.create(spec)
        assert await _listed(provider, spec.id) is None

    async def test_undeclared_verbs_refuse(self, provider: Provider, sandbox: Sandbox) -> None:
        content = NativeContent(provider=provider.name, ref="none", holds=frozenset({Facet.FILES}), size_bytes=0)
        spec = new_spec(provider.capabilities)
        calls = {
            Verb.SNAPSHOT: lambda: sandbox.snapshot(SnapshotRequest()),
            Verb.RESTORE: lambda: sandbox.restore(content),
            Verb.FORK: lambda: sandbox.fork([spec]),
            Verb.ADOPT: lambda: sandbox.adopt(spec),
            Verb.EXPOSE: lambda: sandbox.dial(DialRequest(port=80)),
            Verb.CREATE_FROM_SNAPSHOT: lambda: provider.restore(content, spec),
            Verb.DIFF: lambda: provider.diff(DiffRequest(before=content, after=content)),
            Verb.IMAGES: lambda: provider.add_image(ImageRequest(name="image", source="/nowhere")),
        }
        undeclared = [verb for verb in calls if not provider.capabilities.supports(verb)]
        if not undeclared:
            pytest.skip("the provider declares every optional verb that the border has")
        for verb in undeclared:
            with pytest.raises(UnsupportedError):
                await calls[verb]()
        assert await _listed(provider, spec.id) is None
