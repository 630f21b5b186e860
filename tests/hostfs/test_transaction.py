"""Changes to a tree of the host: all or none, by descriptors, whatever others do to the tree."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import InvalidRequestError, StateError
from mcp_sandbox.hostfs.host_tree import HostTree
from mcp_sandbox.hostfs.staging import Stage, new_stage_name
from mcp_sandbox.hostfs.transaction import Act, Operation, carry_out, revert_all

__all__: list[str] = []


@pytest.fixture(params=["exchange", "three steps"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, on a file system that can exchange two names, and on one that cannot."""
    if request.param != "exchange":
        monkeypatch.setattr("mcp_sandbox.hostfs.renaming._renameat2", lambda: None)
    project = tmp_path / "project"
    (project / "d").mkdir(parents=True)
    for name in ("old", "gone", "d/inner"):
        (project / name).write_text(f"{name}\n")
    return project


@pytest.fixture
def tree(project: Path) -> Iterator[HostTree]:
    with HostTree(project) as tree:
        yield tree


@pytest.fixture
def stage(tree: HostTree) -> Iterator[Stage]:
    with Stage(tree, new_stage_name()) as stage:
        yield stage
        stage.remove()


def _content(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text()
        for path in sorted(project.rglob("*"))
        if path.is_file() and not str(path.relative_to(project)).startswith(".mcp-sandbox-apply-")
    }


def _operations(tree: HostTree, stage: Stage) -> list[Operation]:
    """Return one of each: replace, add, take away, and a directory each that comes and goes."""
    stage.append("1", b"new\n")
    replaced = stage.settle("1", mode=0o640, uid=-1, gid=-1)
    stage.append("2", b"added\n")
    added = stage.settle("2", mode=0o644, uid=-1, gid=-1)
    return [
        Operation(act=Act.TAKE, path="d/inner", slot="3", before=tree.look("d/inner")),
        Operation(act=Act.CLEAR, path="d", before=tree.look("d")),
        Operation(act=Act.SWAP, path="old", slot="1", staged_inode=replaced.inode, before=tree.look("old")),
        Operation(act=Act.MAKE, path="e", mode=0o750),
        Operation(act=Act.PLACE, path="e/added", slot="2", staged_inode=added.inode),
        Operation(act=Act.MODE, path="gone", mode=0o600, before=tree.look("gone")),
    ]


def test_everything_happens_and_the_stage_has_what_was_there(project: Path, tree: HostTree, stage: Stage) -> None:
    operations = _operations(tree, stage)
    carry_out(tree, stage.descriptor, operations)
    assert _content(project) == {"old": "new\n", "e/added": "added\n", "gone": "gone\n"}
    assert [stat.S_IMODE((project / name).stat().st_mode) for name in ("old", "e", "gone")] == [0o640, 0o750, 0o600]
    assert sorted(os.listdir(stage.descriptor)) == ["1", "3"]
    assert revert_all(tree, stage.descriptor, operations) == []
    assert _content(project) == {"old": "old\n", "gone": "gone\n", "d/inner": "d/inner\n"}
    assert revert_all(tree, stage.descriptor, operations) == [], "to revert twice is to revert once"


@pytest.mark.parametrize("done", range(7))
def test_however_far_it_came_it_is_put_back(project: Path, tree: HostTree, stage: Stage, done: int) -> None:
    before = _content(project)
    operations = _operations(tree, stage)
    carry_out(tree, stage.descriptor, operations[:done])
    assert revert_all(tree, stage.descriptor, operations) == []
    assert _content(project) == before
    assert stat.S_IMODE((project / "gone").stat().st_mode) == 0o644 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_name_that_somebody_took_meanwhile_stops_everything(project: Path, tree: HostTree, stage: Stage) -> None:
    operations = _operations(tree, stage)
    (project / "e").write_text("theirs\n")
    before = _content(project)
    with pytest.raises(FileExistsError):
        carry_out(tree, stage.descriptor, operations)
    assert _content(project) == before


@pytest.mark.parametrize("path", ["old", "d/inner"])
def test_a_file_that_somebody_changed_after_the_check_stops_everything(
    project: Path, tree: HostTree, stage: Stage, path: str
) -> None:
    operations = _operations(tree, stage)
    (project / path).write_text("theirs, and longer\n")
    before = _content(project)
    with pytest.raises(StateError, match="at the same moment"):
        carry_out(tree, stage.descriptor, operations)
    assert _content(project) == before


def test_no_path_leads_out(project: Path, tree: HostTree, stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("theirs\n")
    (project / "link").symlink_to(tmp_path / "outside")
    stage.append("1", b"x")
    assert tree.look("link/f") is None
    with pytest.raises(NotADirectoryError):
        carry_out(tree, stage.descriptor, [Operation(act=Act.PLACE, path="link/new", slot="1")])
    with pytest.raises(NotADirectoryError):
        carry_out(tree, stage.descriptor, [Operation(act=Act.TAKE, path="link/f", slot="2")])
    for path in ("../x", "/etc/x", "d/../../x", "", ".", "d//x", "a\0b"):
        with pytest.raises(InvalidRequestError):
            tree.look(path)
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["f"]


def test_what_stood_there_is_kept_and_comes_back_the_same(
    project: Path, tree: HostTree, stage: Stage, tmp_path: Path
) -> None:
    (project / "link").symlink_to("old")
    os.utime(project / "old", ns=(10**18, 10**18 + 7))
    other = project / "other name of old"
    other.hardlink_to(project / "old")
    entries = {name: tree.look(name) for name in ("old", "link", "gone")}
    takes = [Operation(act=Act.TAKE, path=path, slot=str(at), before=entries[path]) for at, path in enumerate(entries)]
    carry_out(tree, stage.descriptor, takes)
    kept = tmp_path / "kept"
    kept.mkdir()
    for take in takes:
        stage.keep(take.slot, kept)
    other.write_text("changed in place by its other name\n")
    stage.remove()
    with Stage(tree, new_stage_name()) as again:
        for take in takes:
            assert take.before is not None
            staged = again.bring_back(kept / take.slot, take.before)
            place = Operation(act=Act.PLACE, path=take.path, slot=take.slot, staged_inode=staged.inode)
            carry_out(tree, again.descriptor, [place])
        again.remove()
    os.mkdir(project / stage_name(stage))
    assert (project / "old").read_text() == "old\n"
    assert (project / "old").stat().st_mtime_ns == 10**18 + 7
    assert (project / "link").readlink() == Path("old")


def stage_name(stage: Stage) -> str:
    """Return the name of a stage, so that the fixture finds one to remove."""
    return os.readlink(f"/proc/self/fd/{stage.descriptor}").removesuffix(" (deleted)").rpartition("/")[2]


def test_what_somebody_saves_in_the_same_moment_keeps_nothing_from_being_put_back(
    project: Path, tree: HostTree, stage: Stage
) -> None:
    """An editor writes a new file and renames it over the one whose mode was to change."""
    operations = _operations(tree, stage)
    (project / "saved").write_text("edited\n")
    (project / "saved").rename(project / "gone")
    with pytest.raises(StateError, match="gone"):
        carry_out(tree, stage.descriptor, operations)
    assert _content(project) == {"old": "old\n", "gone": "edited\n", "d/inner": "d/inner\n"}


def test_what_somebody_wrote_into_a_file_that_came_home_is_not_taken_back(
    project: Path, tree: HostTree, stage: Stage
) -> None:
    stage.append("1", b"new\n")
    staged = stage.settle("1", mode=0o640, uid=-1, gid=-1)
    swap = Operation(
        act=Act.SWAP, path="old", slot="1", staged_inode=staged.inode, staged_bytes=staged.size_bytes,
        staged_modified_ns=staged.modified_ns, before=tree.look("old"),
    )  # fmt: skip
    carry_out(tree, stage.descriptor, [swap])
    with (project / "old").open("a") as file:
        file.write("the user's line\n")
    assert revert_all(tree, stage.descriptor, [swap]) == ["old"]
    assert (project / "old").read_text() == "new\nthe user's line\n"
