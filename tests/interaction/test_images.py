"""Images, as a model meets them: by name, and never by a path of the host."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.images.small_root import small_root
from tests.interaction.wire_client import WireClient

__all__: list[str] = []


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_root(tmp_path_factory.mktemp("rootfs") / "rootfs")


def _sandboxes(server: WireClient) -> list[dict[str, Any]]:
    return server.call("sandbox_list").message["result"]["structuredContent"]["sandboxes"]


def test_a_server_starts_its_sandboxes_from_an_image_and_the_model_can_name_it(
    start: Callable[..., WireClient], root: Path
) -> None:
    server = start("serve", "--image", str(root))
    assert server.exec("cat /etc/os-release").body.endswith("\nID=small")
    (listed,) = _sandboxes(server)
    name = listed["image"]
    assert name.startswith("rootfs-")
    other = start("serve")
    made = other.call("sandbox_create", name="second", image=name)
    assert f"image={name}" in made.text
    assert other.exec("cat /etc/os-release", sandbox="second").body == (
        "note: no bash in this sandbox: ran with /bin/sh\nID=small"
    )


def test_a_sandbox_from_a_snapshot_goes_on_having_the_image_that_it_lies_on(
    start: Callable[..., WireClient], root: Path
) -> None:
    server = start("serve", "--image", str(root))
    server.exec("true")
    (first,) = _sandboxes(server)
    snapshot = server.call("snapshot_create").text.split()[0]
    made = start("serve").call("sandbox_create", name="second", from_snapshot=snapshot)
    assert f"image={first['image']}" in made.text
    assert server.exec("cat /etc/os-release", sandbox="second").body.endswith("ID=small")


def test_a_model_cannot_name_a_path_of_the_host(server: WireClient) -> None:
    for image in ("unknown", "/", "/etc", "../rootfs", "."):
        reply = server.call("sandbox_create", image=image)
        assert reply.is_error
        assert f"No image '{image}'" in reply.text
    assert _sandboxes(server) == []


def test_a_mistyped_image_is_told_when_the_server_starts(start: Callable[..., WireClient]) -> None:
    server = start("serve", "--image", "typo")
    assert "No image 'typo'" in server.exec("true").text
    server.close()
    assert b"image 'typo' is not here" in b"".join(server.errors)


def test_an_image_and_a_snapshot_together_are_refused(server: WireClient) -> None:
    server.call("exec", command="true")
    snapshot = server.call("snapshot_create").text.split()[0]
    reply = server.call("sandbox_create", image="unknown", from_snapshot=snapshot)
    assert reply.is_error
    assert "Give one" in reply.text
