"""`mcp-sandbox image`, and `--image`."""

import json
import os
import shutil
from pathlib import Path

import pytest
from command_line import CommandLine

from tests.images.small_root import small_root, tar_of

__all__: list[str] = []


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_root(tmp_path_factory.mktemp("rootfs") / "rootfs")


def test_an_image_is_imported_used_listed_and_removed(machine: CommandLine, root: Path, tmp_path: Path) -> None:
    assert "image build" in machine.say("image", "list")
    archive = tar_of(root, tmp_path / "small.tar.gz", "gz")
    assert machine.say("image", "import", str(archive)) == "small\n"
    assert machine.say("exec", "--image", "small", "--", "cat", "/etc/os-release") == "ID=small\n"
    (listed,) = json.loads(machine.say("image", "list", "--json"))
    assert listed["name"] == "small"
    assert listed["origin"] == str(archive)
    assert listed["size_bytes"] > 100_000
    assert "small" in machine.say("image", "list")
    (sandbox,) = machine.sandboxes()
    assert sandbox["image"] == "small"
    done = machine.run("image", "rm", "never-there", "small")
    assert done.stdout == b"small\n"
    assert b"No image 'never-there'" in done.stderr
    assert machine.say("exec", "--", "cat", "/etc/os-release") == "ID=small\n"
    machine.say("rm", sandbox["id"])
    assert machine.run("exec", "--image", "small", "--", "true").returncode == 2


def test_a_path_is_imported_once_and_again_when_it_changed(machine: CommandLine, root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    images: list[str] = []
    for _ in range(2):
        assert machine.say("exec", "--image", str(copy), "--", "cat", "/etc/os-release") == "ID=small\n"
        images.append(json.loads(machine.say("image", "list", "--json"))[0]["content"])
    (copy / "etc" / "os-release").write_text("ID=changed\n")
    machine.say("rm", machine.sandboxes()[0]["id"])
    relative = os.path.relpath(copy, machine.project)
    assert machine.say("exec", "--image", relative, "--", "cat", "/etc/os-release") == "ID=changed\n"
    (image,) = json.loads(machine.say("image", "list", "--json"))
    images.append(image["content"])
    assert images[0] == images[1] != images[2]
    machine.say("image", "rm", image["name"])


def test_another_image_than_the_sandboxs_is_refused(machine: CommandLine, root: Path) -> None:
    machine.say("image", "import", str(root), "--name", "told")
    machine.say("exec", "--", "true")
    done = machine.run("exec", "--image", "told", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"started from no image" in done.stderr
    assert b"mcp-sandbox rm --own" in done.stderr
    machine.say("rm", "--own")
    for option in (("--image", "told"), ()):
        done = machine.run("exec", *option, "--", "cat", "/etc/os-release")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"ID=small\n", b"")
    machine.say("image", "rm", "told")


def test_an_imported_snapshot_is_restored_onto_the_image_of_its_sandbox(
    machine: CommandLine, root: Path, tmp_path: Path
) -> None:
    machine.say("image", "import", str(root), "--name", "below")
    machine.say("exec", "--", "sh", "-c", "echo kept > a")
    snapshot, file = machine.say("snapshot", "create").strip(), str(tmp_path / "work.snapshot")
    machine.say("snapshot", "export", snapshot, file)
    machine.say("snapshot", "delete", snapshot)
    machine.say("rm", "--own")
    machine.say("exec", "--image", "below", "--", "cat", "/etc/os-release")
    machine.say("snapshot", "import", file)
    machine.say("snapshot", "restore", snapshot)
    assert machine.say("exec", "--", "cat", "/etc/os-release", "a") == "ID=small\nkept\n"
    machine.say("image", "rm", "below")


def test_an_exported_snapshot_names_its_image_and_lies_on_the_one_of_that_name(
    machine: CommandLine, root: Path, tmp_path: Path
) -> None:
    machine.say("image", "import", str(root), "--name", "carried")
    machine.say("exec", "--image", "carried", "--", "sh", "-c", "echo kept > /workspace/a; echo x > /etc/changed")
    snapshot = machine.say("snapshot", "create").strip()
    file = str(tmp_path / "work.snapshot")
    done = machine.run("snapshot", "export", snapshot, file)
    assert done.returncode == 0, done.stderr
    assert b"it lies on image carried" in done.stderr
    assert b"\n  /etc/changed\n" in done.stderr, "it was not compared with its image"
    assert machine.say("snapshot", "verify", file) == "1 checked, nothing is wrong.\n"
    machine.say("snapshot", "delete", snapshot)
    for is_here in (True, False):
        came_in = machine.run("snapshot", "import", file)
        assert came_in.stdout.decode().strip() == snapshot
        assert (b"an image called carried" in came_in.stderr) is not is_here
        machine.say("rm", machine.sandboxes()[0]["id"])
        machine.say("snapshot", "restore", snapshot)
        assert machine.say("exec", "--", "cat", "/workspace/a") == "kept\n"
        assert (machine.say("exec", "--", "cat", "/etc/os-release") == "ID=small\n") is is_here
        machine.say("snapshot", "delete", snapshot)
        if is_here:
            machine.say("image", "rm", "carried")
    machine.say("rm", machine.sandboxes()[0]["id"])


REFUSED = {
    ("exec", "--image", "unknown", "--", "true"): b"No image 'unknown'",
    ("exec", "--image", "./unknown", "--", "true"): b"No such file or directory",
    ("exec", "--image", "some/unknown", "--", "true"): b"'some/unknown'",
    ("image", "import", "/dev/null"): b"neither a directory nor a file",
    ("image", "import", __file__): b"no tar archive",
    ("image", "import", "/", "--name", "host"): b"state of mcp-sandbox",
    ("image", "import", "/usr/bin", "--name", "a/b"): b"No image can be called",
    ("image", "build", "--from", "bookworm"): b"debian:bookworm",
    ("image", "build", "--from", "debian:../etc", "--name", "x"): b"no such system can be built",
    (
        "image",
        "build",
        "--from",
        "debian:sid",
        "--packages",
        "git,--no-check-gpg",
        "--name",
        "x",
    ): b"no name of a package",
    ("image", "build", "--from", "debian:sid", "--mirror", "ssh://x/"): b"the mirror is no URL",
}


def test_what_cannot_be_is_refused_and_leaves_nothing(machine: CommandLine) -> None:
    for arguments, words in REFUSED.items():
        done = machine.run(*arguments)
        assert done.returncode == 2, arguments
        assert words in done.stderr, arguments
    assert machine.sandboxes() == []
    images = machine.home / "providers" / "local" / "images"
    assert not images.exists() or os.listdir(images) == []


def test_a_provider_without_images_says_so(cli: CommandLine) -> None:
    done = cli.run("image", "list")
    assert done.returncode == 2
    assert b"No images: provider 'memory' does not declare it" in done.stderr
