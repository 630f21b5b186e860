"""What a plan says, where no test on one machine could show that it must."""

import pytest

from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.identity import Identity
from mcp_sandbox.engines.plan import Volume, sandbox_plan

__all__: list[str] = []


@pytest.mark.parametrize(
    "identity",
    [
        Identity(start=1_879_048_192, count=65_536, gid=1_879_048_192),
        Identity(start=70_000, count=1000, gid=70_000, is_nested=True),
        Identity(start=1000, count=1, gid=1000),
    ],
    ids=["root", "root of a container", "user"],
)
def test_layers_may_be_shared_and_merged_on_kernels_that_index_overlays_unless_told_not_to(identity: Identity) -> None:
    """CONFIG_OVERLAY_FS_INDEX: a fork then met EBUSY while its source was mounted, a restart after a merge ESTALE."""
    volumes = [Volume(target=target, upper="u", work="w", lowers=["l"]) for target in ("/", "/usr")]
    words = sandbox_plan(identity, volumes, Limits()).split(b"\0")
    options = [words[at + 6].split(b",") for at, word in enumerate(words) if word == b"overlay"]
    assert len(options) == len(volumes)
    assert all(b"index=off" in each for each in options)
