"""The contract, run against gVisor without Docker, as whoever runs the tests."""

import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_sandbox.core.exec import Termination
from mcp_sandbox.core.provider import Provider
from mcp_sandbox.providers.gvisor import GvisorProvider
from mcp_sandbox.testing.driving import new_spec, run, sh
from mcp_sandbox.testing.kit import ProviderContract

__all__ = ["TestGvisor"]

MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="gVisor is a kernel for programs of Linux")
@pytest.mark.skipif(
    not (os.environ.get("MCP_SANDBOX_RUNSC") or shutil.which("runsc")),
    reason="no runsc in PATH: tests/containers/install-runsc brings one",
)
class TestGvisor(ProviderContract):
    """Fails, and is not skipped, where runsc is there and does not work."""

    @pytest.fixture
    async def provider(self, state_directory: Path) -> AsyncIterator[Provider]:
        """A provider on the state directory of this run."""
        async with GvisorProvider(state_directory) as provider:
            yield provider

    @pytest.fixture
    def host_paths(self, state_directory: Path) -> tuple[str, ...]:
        """The engine's state must not be visible."""
        return (str(state_directory),)

    # -- where gVisor's kernel is another one than Linux

    @pytest.mark.skip(reason="gVisor ends what is stopped in a process group without a parent in its session: SIGHUP")
    async def test_b010_a_deadline_kills_the_whole_tree(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See the reason; `test_closing_a_live_command_ends_its_tree` kills the same trees."""

    @pytest.mark.skip(reason="gVisor counts processor time by its own clock, which goes on while the limit holds it")
    async def test_res11_busy_loops_get_no_more_processor_time_than_the_limit(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See the test below, which asks the host."""

    async def test_b037_a_command_that_needs_more_memory_than_the_limit_fails_and_the_next_one_works(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, provider: Provider
    ) -> None:
        """B-037, RES-02: the kernel inside goes with its programs, and the sandbox starts anew with its files."""
        if "memory_bytes" not in provider.capabilities.limits:
            pytest.skip("control groups for memory cannot be made here")
        spec = new_spec(provider.capabilities, {"memory_bytes": 256 * MIB})
        async with await provider.create(spec) as sandbox:
            await sh(sandbox, "echo kept > file")
            hog = (await run(sandbox, "dd", "if=/dev/zero", "of=/dev/null", "bs=1000000000", "count=1")).result
            assert (hog.termination, hog.signal, hog.exit_code) == (Termination.OOM, 9, None)
            assert "256 MiB" in hog.detail
            assert (await run(sandbox, "cat", "file")).stdout == b"kept\n"
        await provider.destroy(spec.id)
