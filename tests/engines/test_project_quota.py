"""Project quotas, on a file system of our own in a file: root only, where the kernel has them."""

import errno
from pathlib import Path

import pytest

from mcp_sandbox.core.exec import Termination
from mcp_sandbox.core.sandbox import Limits, SandboxSpec
from mcp_sandbox.engines.project_quota import ProjectQuota
from mcp_sandbox.providers.local import LocalProvider
from mcp_sandbox.testing.driving import new_id, sh

__all__: list[str] = []

MIB = 1 << 20


def test_where_there_are_none_it_is_said_why(tmp_path: Path) -> None:
    gap = ProjectQuota(Path("/proc")).gap()
    assert gap is not None
    assert gap.why
    assert "prjquota" in gap.fix
    assert ProjectQuota(tmp_path).project_of(tmp_path) == 0


def test_a_tree_has_no_more_bytes_and_files_than_its_project(counted: Path) -> None:
    quota = ProjectQuota(counted)
    assert quota.gap() is None
    tree = counted / "tree"
    tree.mkdir()
    project = quota.new_project()
    quota.claim(project, [tree])
    quota.limit(project, MIB, 20)
    assert quota.project_of(tree) == project
    with pytest.raises(OSError, match="quota") as raised:
        (tree / "large").write_bytes(bytes(2 * MIB))
    assert raised.value.errno in (errno.EDQUOT, errno.ENOSPC)
    assert quota.usage(project).bytes <= MIB
    (tree / "large").unlink()
    with pytest.raises(OSError, match="quota"):
        for number in range(30):
            (tree / str(number)).mkdir()
    assert quota.usage(project).inodes == 20
    quota.limit(project, None, None)
    (tree / "large").write_bytes(bytes(2 * MIB))


async def test_a_sandbox_has_no_more_than_its_quota_and_the_cause_is_named(counted: Path) -> None:
    async with LocalProvider(counted / "state") as provider:
        assert provider.capabilities.limits >= {"disk_bytes", "inodes"}
        spec = SandboxSpec(id=new_id(), limits=Limits(disk_bytes=16 * MIB, inodes=300))
        async with await provider.create(spec) as sandbox:
            for place in ("/workspace", "/usr", "/root", "/var/spool/mcp-sandbox"):
                full = (await sh(sandbox, f"head -c 100000000 /dev/zero > {place}/fill")).result
                assert full.termination is Termination.DISK, place
                assert "16 MiB" in full.detail
                assert (await sh(sandbox, f"rm {place}/fill")).exit_code == 0
            many = (await sh(sandbox, "n=0; while : > f$n; do n=$((n + 1)); done; exit 3")).result
            assert many.termination is Termination.DISK
            assert "300" in many.detail
        await provider.destroy(spec.id)
