"""What a user does with a server while the disk that holds the state is full: `python -m tests.attacks.full_disk DIR`.

The directory is a small file system of its own, which only this process and its children see.
"""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

from tests.interaction.wire_client import Reply, WireClient

__all__ = ["main"]


def _fill(ballast: Path) -> None:
    """Leave not one byte free."""
    for size in (1 << 20, 4096, 1):
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while file.write(b"x" * size) == size:
                pass


def _clear(reply: Reply, what: str) -> None:
    """Whether a call worked, or says that there is no room, in words that help."""
    said = reply.text.lower()
    assert not reply.is_error or "no space left" in said or "full" in said or "room" in said, f"{what}: {reply.text}"
    assert "Traceback" not in reply.text


def main(directory: Path) -> None:
    """Play it."""
    home, project, ballast = directory / "state", directory / "project", directory / "ballast"
    project.mkdir()
    arguments = ("serve", "--project", str(project), "--tools", "full")
    with WireClient(home, *arguments) as server:
        begun = server.exec("echo kept > kept; echo more > more")
        assert begun.header.startswith("exit=0 "), begun.text
        taken = re.search(r"\b[0-9a-f]{16,64}\b", server.call("snapshot_create", note="good").text)
        assert taken is not None
        assert server.exec("echo later > later").header.startswith("exit=0 ")
        _fill(ballast)
        assert "No space left" in server.exec("head -c 100000 /dev/zero > zeros").text
        _every_verb(server, taken[0])
        server.process.send_signal(signal.SIGKILL)  # and nothing that it had begun can be finished now
        server.process.wait()
    with WireClient(home, *arguments) as server:
        _every_verb(server, taken[0])
    ballast.unlink()
    with WireClient(home, *arguments) as server:
        assert server.exec("cat kept more later").body.split() == ["kept", "more", "later"]
        assert not server.call("write_file", file_path="/workspace/new", content="n" * 10_000).is_error
        assert server.exec("wc -c < new").body.strip() == "10000"
        made = server.call("sandbox_create", name="again", from_snapshot=taken[0])
        assert not made.is_error, made.text
        assert server.exec("cat kept more later", sandbox="again").body.split()[:2] == ["kept", "more"]
        for identity in set(re.findall(r"\b[0-9a-f]{12,64}\b", server.call("snapshot_list").text)):
            assert not server.call("sandbox_create", from_snapshot=identity).is_error
        undone = server.call("snapshot_restore", snapshot=taken[0])
        assert not undone.is_error, undone.text
        assert server.exec("ls").body.split() == ["kept", "more"]
        assert b"Traceback" not in b"".join(server.errors), b"".join(server.errors).decode()


def _every_verb(server: WireClient, snapshot: str) -> None:
    """Ask for everything while there is no room: each answers, and what is there can be read."""
    for tool, given in (
        ("exec", {"command": "echo hi"}),
        ("exec", {"command": "echo hi", "run_in_background": True}),
        ("write_file", {"file_path": "/workspace/a", "content": "b" * 10_000}),
        ("edit_file", {"file_path": "/workspace/kept", "old_string": "kept", "new_string": "k" * 10_000}),
        ("snapshot_create", {"note": "full"}),
        ("sandbox_create", {"name": f"box-{os.getpid()}"}),
        ("sandbox_create", {"name": f"copy-{os.getpid()}", "from_snapshot": snapshot}),
        ("snapshot_list", {}),
        ("sandbox_list", {}),
    ):
        _clear(server.call(tool, **given), tool)
    read = server.call("read_file", file_path="/workspace/kept")
    _clear(read, "read_file")
    assert read.is_error or "kept" in read.text
    assert server.process.poll() is None
    assert b"Traceback" not in b"".join(server.errors), b"".join(server.errors).decode()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
