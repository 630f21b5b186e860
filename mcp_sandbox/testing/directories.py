"""Directories through the border: listing, making, removing, renaming, and names that are hard to write down."""

import errno

import pytest

from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.files import (
    FileKind,
    ListRequest,
    MkdirRequest,
    ReadRequest,
    RemoveRequest,
    RenameRequest,
    StatRequest,
)
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.testing.contract import Contract
from mcp_sandbox.testing.driving import entries, put, read_file, run, sh, status_of

__all__ = ["DirectoryContract"]

NAMES = [
    "two words",
    "line\nbreak",
    "-rf",
    "a\\b",
    "quote\"s'",
    "*?[x]",
    "é precomposed",
    "e\u0301 decomposed",
    "not UTF-8 \udc85\udcff",
    "...",
    "x" * 255,
    "漢" * 85,
]


class DirectoryContract(Contract):
    """List, mkdir, remove and rename."""

    # -- list

    async def test_a_listing_says_what_each_entry_is(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/file", b"123", 0o600)
        await put(sandbox, "/workspace/directory/below")
        await run(sandbox, "ln", "-s", "directory", "link")
        await run(sandbox, "ln", "-s", "nowhere", "dangling")
        found = await entries(sandbox, "/workspace")
        assert {name: entry.kind for name, entry in found.items()} == {
            "file": FileKind.FILE,
            "directory": FileKind.DIRECTORY,
            "link": FileKind.SYMLINK,
            "dangling": FileKind.SYMLINK,
        }
        assert (found["file"].size_bytes, found["file"].mode) == (3, 0o600)
        assert (found["link"].link_target, found["dangling"].link_target) == ("directory", "nowhere")

    async def test_a_listing_goes_as_deep_as_asked_and_never_through_links(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/a/b/c/file")
        await run(sandbox, "ln", "-s", "/workspace", "/workspace/a/up")
        levels = ["a", "a/b", "a/b/c", "a/b/c/file"]
        for depth in (1, 2, 3, 4, 100):
            found = await entries(sandbox, "/workspace", depth)
            assert sorted(found) == sorted(levels[:depth] + (["a/up"] if depth > 1 else []))

    async def test_a_pruned_directory_is_listed_but_not_entered(self, sandbox: Sandbox) -> None:
        for path in ("keep/node_modules/x", "keep/file", "node_modules/y"):
            await put(sandbox, f"/workspace/{path}")
        listing = await sandbox.list(ListRequest(path="/workspace", depth=9, prune=frozenset({"node_modules"})))
        names = {entry.path.removeprefix("/workspace/") for entry in listing.entries}
        assert names == {"keep", "keep/node_modules", "keep/file", "node_modules"}

    async def test_a_listing_stops_at_its_limit_and_says_so(self, sandbox: Sandbox) -> None:
        for number in range(7):
            await put(sandbox, f"/workspace/{number}")
        short = await sandbox.list(ListRequest(path="/workspace", limit=5))
        assert (len(short.entries), short.truncated) == (5, True)
        full = await sandbox.list(ListRequest(path="/workspace", limit=7))
        assert (len(full.entries), full.truncated) == (7, False)

    async def test_thousands_of_entries_are_listed(self, programs: None, sandbox: Sandbox) -> None:
        await sh(sandbox, "mkdir many && cd many && seq 5000 | xargs touch")
        assert len(await entries(sandbox, "/workspace/many")) == 5000

    async def test_a_link_to_a_directory_is_listed_like_it(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/directory/file")
        await run(sandbox, "ln", "-s", "directory", "link")
        assert list(await entries(sandbox, "/workspace/link")) == ["file"]

    async def test_what_is_no_directory_is_not_listed(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/file")
        with pytest.raises(NotADirectoryError):
            await sandbox.list(ListRequest(path="/workspace/file"))
        with pytest.raises(FileNotFoundError):
            await sandbox.list(ListRequest(path="/workspace/missing"))

    # -- mkdir

    async def test_mkdir_makes_parents_or_refuses(self, sandbox: Sandbox) -> None:
        with pytest.raises(FileNotFoundError):
            await sandbox.mkdir(MkdirRequest(path="/workspace/a/b", parents=False))
        await sandbox.mkdir(MkdirRequest(path="/workspace/a/b", mode=0o700))
        assert (await status_of(sandbox, "/workspace/a/b")).mode == 0o700
        assert (await status_of(sandbox, "/workspace/a")).mode == 0o755

    async def test_mkdir_accepts_a_directory_that_is_there_unless_told_not_to(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/a/file")
        await sandbox.mkdir(MkdirRequest(path="/workspace/a"))
        assert list(await entries(sandbox, "/workspace/a")) == ["file"]
        with pytest.raises(FileExistsError):
            await sandbox.mkdir(MkdirRequest(path="/workspace/a", exist_ok=False))
        with pytest.raises(FileExistsError):
            await sandbox.mkdir(MkdirRequest(path="/workspace/a/file"))
        with pytest.raises(NotADirectoryError):
            await sandbox.mkdir(MkdirRequest(path="/workspace/a/file/below"))

    # -- remove

    async def test_a_file_a_link_and_an_empty_directory_are_removed(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/target", b"kept")
        await put(sandbox, "/workspace/file")
        await sandbox.mkdir(MkdirRequest(path="/workspace/directory"))
        await run(sandbox, "ln", "-s", "target", "link")
        for name in ("file", "link", "directory"):
            await sandbox.remove(RemoveRequest(path=f"/workspace/{name}"))
        assert list(await entries(sandbox, "/workspace")) == ["target"]

    async def test_a_full_directory_is_removed_only_with_all_that_is_in_it(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/full/deep/file")
        with pytest.raises(OSError) as caught:
            await sandbox.remove(RemoveRequest(path="/workspace/full"))
        assert caught.value.errno == errno.ENOTEMPTY
        assert list(await entries(sandbox, "/workspace/full/deep")) == ["file"]
        await sandbox.remove(RemoveRequest(path="/workspace/full", recursive=True))
        assert await entries(sandbox, "/workspace") == {}

    async def test_removing_a_tree_does_not_follow_its_links(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/precious/file")
        await put(sandbox, "/workspace/tree/file")
        await run(sandbox, "ln", "-s", "/workspace/precious", "/workspace/tree/link")
        await run(sandbox, "ln", "-s", "/workspace/precious", "/workspace/link")
        for name in ("tree", "link"):
            await sandbox.remove(RemoveRequest(path=f"/workspace/{name}", recursive=True))
        assert set(await entries(sandbox, "/workspace", 2)) == {"precious", "precious/file"}

    async def test_removing_what_is_missing_is_an_error_unless_allowed(self, sandbox: Sandbox) -> None:
        with pytest.raises(FileNotFoundError):
            await sandbox.remove(RemoveRequest(path="/workspace/missing"))
        await sandbox.remove(RemoveRequest(path="/workspace/missing", missing_ok=True))
        await sandbox.remove(RemoveRequest(path="/workspace/missing", recursive=True, missing_ok=True))

    async def test_a_deep_tree_is_removed(self, programs: None, sandbox: Sandbox) -> None:
        script = "n=0; while [ $n -lt 300 ]; do mkdir d && cd d || exit 1; n=$((n + 1)); done; touch file"
        assert (await sh(sandbox, script)).exit_code == 0
        await sandbox.remove(RemoveRequest(path="/workspace/d", recursive=True))
        assert await entries(sandbox, "/workspace") == {}

    # -- rename

    async def test_rename_moves_files_directories_and_links_themselves(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/d/file", b"1", 0o751)
        await run(sandbox, "ln", "-s", "nowhere", "link")
        before = await status_of(sandbox, "/workspace/d/file")
        await sandbox.rename(RenameRequest(source="/workspace/d", target="/workspace/e"))
        await sandbox.rename(RenameRequest(source="/workspace/link", target="/workspace/e/link"))
        assert set(await entries(sandbox, "/workspace", 2)) == {"e", "e/file", "e/link"}
        after = await status_of(sandbox, "/workspace/e/file")
        assert (after.mode, after.modified_ns) == (before.mode, before.modified_ns)
        assert (await status_of(sandbox, "/workspace/e/link")).link_target == "nowhere"

    async def test_rename_replaces_a_file_unless_told_not_to(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/a", b"a")
        await put(sandbox, "/workspace/b", b"b")
        with pytest.raises(FileExistsError):
            await sandbox.rename(RenameRequest(source="/workspace/a", target="/workspace/b", replace=False))
        assert (await read_file(sandbox, "/workspace/a"), await read_file(sandbox, "/workspace/b")) == (b"a", b"b")
        await sandbox.rename(RenameRequest(source="/workspace/a", target="/workspace/b"))
        assert await read_file(sandbox, "/workspace/b") == b"a"
        assert list(await entries(sandbox, "/workspace")) == ["b"]

    async def test_a_rename_that_makes_no_sense_is_an_error_and_changes_nothing(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/file")
        await put(sandbox, "/workspace/d/below/x")
        await put(sandbox, "/workspace/full/x")
        before = set(await entries(sandbox, "/workspace", 9))
        for source, target, number in (
            ("missing", "new", errno.ENOENT),
            ("file", "missing/new", errno.ENOENT),
            ("d", "d/below/d", errno.EINVAL),
            ("d", "full", errno.ENOTEMPTY),
            ("d", "file", errno.ENOTDIR),
            ("file", "d", errno.EISDIR),
        ):
            with pytest.raises(OSError) as caught:
                await sandbox.rename(RenameRequest(source=f"/workspace/{source}", target=f"/workspace/{target}"))
            assert caught.value.errno == number or (number, caught.value.errno) == (errno.ENOTEMPTY, errno.EEXIST)
        assert set(await entries(sandbox, "/workspace", 9)) == before

    # -- names

    @pytest.mark.parametrize("name", NAMES, ids=[ascii(name)[:40] for name in NAMES])
    async def test_any_name_the_kernel_takes_works_with_every_verb(self, sandbox: Sandbox, name: str) -> None:
        path = f"/workspace/{name}"
        await put(sandbox, path, b"content")
        assert list(await entries(sandbox, "/workspace")) == [name]
        assert (await status_of(sandbox, path)).path == path
        assert await read_file(sandbox, path) == b"content"
        assert (await run(sandbox, "cat", path)).stdout == b"content"
        await sandbox.rename(RenameRequest(source=path, target="/workspace/plain"))
        await sandbox.rename(RenameRequest(source="/workspace/plain", target=path))
        await sandbox.remove(RemoveRequest(path=path))
        await sandbox.mkdir(MkdirRequest(path=path))
        await sandbox.remove(RemoveRequest(path=path, recursive=True))
        assert await entries(sandbox, "/workspace") == {}

    async def test_a_name_longer_than_the_kernel_takes_is_an_error(self, sandbox: Sandbox) -> None:
        for path in (f"/workspace/{'x' * 256}", "/workspace" + "/y" * 2100):
            with pytest.raises(OSError) as caught:
                await put(sandbox, path)
            assert caught.value.errno == errno.ENAMETOOLONG

    async def test_dots_are_walked_as_the_kernel_walks_them(self, sandbox: Sandbox) -> None:
        await put(sandbox, "/workspace/real/below/file", b"found")
        await run(sandbox, "ln", "-s", "real/below", "link")
        for path in ("/workspace/./real//below/file", "/workspace/link/../below/file", "/../../workspace/link/file"):
            assert await read_file(sandbox, path) == b"found"
        with pytest.raises(FileNotFoundError):
            await sandbox.read(ReadRequest(path="/workspace/missing/../real/below/file"))

    @pytest.mark.parametrize("path", ["", "relative", "./workspace", "/workspace/\0", "\0"])
    async def test_a_path_that_is_relative_or_holds_a_nul_is_refused(self, sandbox: Sandbox, path: str) -> None:
        with pytest.raises((SandboxError, OSError, ValueError)):
            await sandbox.stat(StatRequest(path=path))
        with pytest.raises((SandboxError, OSError, ValueError)):
            await put(sandbox, path)
        assert await entries(sandbox, "/workspace") == {}
