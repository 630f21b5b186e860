"""Where control groups can be made: the decision on machines that this one is not, laid out as directories."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_sandbox.core.sandbox import Limits
from mcp_sandbox.engines.cgroup_places import Kernel, find_places
from mcp_sandbox.engines.cgroups import CgroupCounters, Cgroups

__all__: list[str] = []

ALL = "cpuset cpu io memory pids\n"


def kernel(
    root: Path, membership: str, *, uid: int = 1000, first: int = 2, busctl: str | None = None, kind: str = "cgroup2"
) -> Kernel:
    """Return what a machine would say that has its control groups at `root`."""
    mount = f"30 1 0:1 / {root} rw - {kind} none rw\n"
    return Kernel(
        mountinfo=mount, membership=membership, uid=uid, ours=frozenset({os.getpid(), first}),
        runtime=root / "runtime", busctl=busctl,
    )  # fmt: skip


def group(path: Path, *, procs: str = "", controllers: str = ALL, top: bool = False) -> Path:
    """Lay out a group of version 2."""
    path.mkdir(parents=True, exist_ok=True)
    files = {"cgroup.procs": procs, "cgroup.controllers": controllers, "cgroup.subtree_control": ""}
    for name, content in (files if top else files | {"cgroup.events": "populated 1\n"}).items():
        (path / name).write_text(content)
    return path


needs_access = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere, so nothing can look foreign")


def test_root_makes_groups_below_the_machines_first_one(tmp_path: Path) -> None:
    group(tmp_path, top=True)
    group(tmp_path / "system.slice/ssh.service", procs="1\n")
    places = find_places(kernel(tmp_path, "0::/system.slice/ssh.service\n", uid=0))
    assert (places.version, dict(places.parents)) == (2, dict.fromkeys(("memory", "cpu", "pids"), tmp_path))
    assert not places.leave_first
    assert places.missing == {}


@needs_access
def test_a_group_of_its_own_is_left_and_divided(tmp_path: Path) -> None:
    """`systemd-run --user --scope -p Delegate=yes mcp-sandbox serve`, or a container with a writable hierarchy."""
    group(tmp_path, top=True).chmod(0o555)
    own = tmp_path / "own.scope"
    tmp_path.chmod(0o755)
    group(own, procs=f"{os.getpid()}\n2\n")
    (tmp_path / "cgroup.procs").chmod(0o444)
    tmp_path.chmod(0o555)
    places = find_places(kernel(tmp_path, "0::/own.scope\n"))
    tmp_path.chmod(0o755)
    assert dict(places.parents) == dict.fromkeys(("memory", "cpu", "pids"), own)
    assert places.leave_first


@needs_access
def test_a_group_that_is_shared_with_others_is_left_alone(tmp_path: Path) -> None:
    own = group(tmp_path / "session.scope", procs=f"{os.getpid()}\n4711\n")
    group(tmp_path)
    places = find_places(kernel(tmp_path, "0::/session.scope\n"))
    assert own.exists()
    assert places.parents == {}
    assert "shared with others" in places.missing["memory"].why
    assert "Delegate=yes" in places.missing["memory"].fix


def users_machine(tmp_path: Path, controllers: str = "memory pids\n") -> str:
    """Lay out a login below a user's systemd; return the membership."""
    group(tmp_path)
    login = group(tmp_path / "user.slice/user-1000.slice/session-3.scope", procs="1\n4711\n")
    group(tmp_path / "user.slice/user-1000.slice/user@1000.service", controllers=controllers)
    (tmp_path / "runtime/systemd").mkdir(parents=True)
    (tmp_path / "runtime/systemd/private").touch()
    return f"0::/{login.relative_to(tmp_path)}\n"


def test_the_users_systemd_is_asked_where_there_is_one(tmp_path: Path) -> None:
    places = find_places(kernel(tmp_path, users_machine(tmp_path), busctl="/usr/bin/busctl"))
    assert places.by_user_manager
    assert set(places.parents) == {"memory", "pids"}
    assert "not delegated" in places.missing["cpu"].why
    assert "user@.service" in places.missing["cpu"].fix


def test_without_a_way_to_ask_it_nothing_can_be_limited(tmp_path: Path) -> None:
    places = find_places(kernel(tmp_path, users_machine(tmp_path)))
    assert places.parents == {}
    assert set(places.missing) == {"memory", "cpu", "pids"}


def test_the_first_version_is_used_where_the_second_has_no_controllers(tmp_path: Path) -> None:
    group(tmp_path / "unified", controllers="", top=True)
    for name in ("memory", "pids"):
        own = tmp_path / name / "mine"
        own.mkdir(parents=True)
        (own / "tasks").touch()
    mountinfo = f"29 1 0:1 / {tmp_path}/unified rw - cgroup2 none rw\n" + "".join(
        f"3{n} 1 0:{n} / {tmp_path}/{name} rw - cgroup none rw,{name}\n" for n, name in enumerate(("memory", "pids"))
    )
    here = Kernel(
        mountinfo=mountinfo, membership="8:pids:/mine\n4:memory:/mine\n0::/\n", uid=0, ours=frozenset(),
        runtime=tmp_path, busctl=None,
    )  # fmt: skip
    places = find_places(here)
    assert places.version == 1
    assert dict(places.parents) == {name: tmp_path / name / "mine" for name in ("memory", "pids")}
    assert "no control group hierarchy for cpu" in places.missing["cpu"].why


def test_a_group_outside_of_what_a_container_sees_is_not_used(tmp_path: Path) -> None:
    group(tmp_path, top=False)
    places = find_places(kernel(tmp_path, "0::/../elsewhere\n", uid=0))
    assert places.parents == {}


async def test_what_is_written_for_the_second_version(tmp_path: Path) -> None:
    """The files of this machine's kernel would take it; here they are plain ones."""
    group(tmp_path, top=True)
    groups = Cgroups(kernel(tmp_path, "0::/\n", uid=0), 2)
    made = tmp_path / "mcp-sandbox/sb_x"
    made.mkdir(parents=True)
    for name in ("memory.swap.max",):
        (made / name).touch()
    limits = Limits(memory_bytes=1 << 28, cpu_count=1.5, pids=100)
    found = await groups.make("sb_x", limits)
    assert found.options == ["cgroup", made]
    assert {path.name: path.read_text() for path in made.iterdir()} == {
        "memory.max": str(1 << 28), "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "101",
    }  # fmt: skip
    for parent in (tmp_path, tmp_path / "mcp-sandbox"):
        assert sorted((parent / "cgroup.subtree_control").read_text().split()) == ["+cpu", "+memory", "+pids"]
    (made / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (made / "pids.events").write_text("max 7\n")
    assert found.counters() == CgroupCounters(oom_kills=2, pids_refused=7)


async def test_a_group_that_another_server_removed_at_its_end_is_divided_again(tmp_path: Path) -> None:
    """All servers of root share it on version 2; undivided, no group below it could be limited."""
    group(tmp_path, top=True)
    groups = Cgroups(kernel(tmp_path, "0::/\n", uid=0), 2)
    await groups.make("sb_x", Limits(memory_bytes=1 << 30))
    shutil.rmtree(tmp_path / "mcp-sandbox")
    await groups.make("sb_y", Limits(memory_bytes=1 << 30))
    divided = (tmp_path / "mcp-sandbox/cgroup.subtree_control").read_text()
    assert sorted(divided.split()) == ["+cpu", "+memory", "+pids"]


def test_swap_that_the_kernel_does_not_count_is_no_memory_limit(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/tasks").touch()
    machine = replace(
        kernel(tmp_path, "4:memory:/own\n", kind="cgroup"),
        mountinfo=f"30 1 0:1 / {tmp_path} rw - cgroup none rw,memory\n",
    )
    assert "memory" in find_places(machine).parents
    swapping = replace(machine, swaps="Filename Type Size Used Priority\n/swap file 1 0 -2\n")
    places = find_places(swapping)
    assert "memory" not in places.parents
    assert "swaps" in places.missing["memory"].why
    (tmp_path / "own/memory.memsw.limit_in_bytes").touch()
    assert "memory" in find_places(swapping).parents
