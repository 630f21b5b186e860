"""The file tools, against what a command sees."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interaction.wire_client import WireClient

pytestmark = pytest.mark.parametrize("provider", ["local", "docker"], indirect=True)


def test_b049_b050_an_edit_keeps_crlf(server: WireClient) -> None:
    server.exec(r"printf 'a\r\nb\r\nc\r\n' > f")
    assert not server.call("edit_file", file_path="f", old_string="a\nb\n", new_string="x\ny\n").is_error
    assert server.exec("cat -A f").body.split() == ["x^M$", "y^M$", "c^M$"]
    server.exec(r"printf 'q\r\nq\r\n' > g")
    server.call("edit_file", file_path="g", old_string="q\n", new_string="r\n", replace_all=True)
    assert server.exec("cat -A g").body.split() == ["r^M$", "r^M$"]


def test_m21_an_edit_keeps_bom_latin1_bytes_and_mode(server: WireClient) -> None:
    server.exec(r"printf '\357\273\277old\n' > bom; printf 'caf\351 old\n' > latin; chmod 751 latin")
    for name in ("bom", "latin"):
        assert not server.call("edit_file", file_path=name, old_string="old", new_string="new").is_error
    assert server.exec("od -An -tx1 bom").body.split() == ["ef", "bb", "bf", "6e", "65", "77", "0a"]
    assert server.exec("od -An -tx1 latin; stat -c %a latin").body.split() == [
        "63", "61", "66", "e9", "20", "6e", "65", "77", "0a", "751",
    ]  # fmt: skip


def test_b051_an_ambiguous_or_missing_edit_is_refused_and_changes_nothing(server: WireClient) -> None:
    server.exec("printf 'a\\nb\\na\\n' > f")
    twice = server.call("edit_file", file_path="f", old_string="a", new_string="x")
    assert twice.is_error
    missing = server.call("edit_file", file_path="f", old_string="nothing", new_string="x")
    assert missing.is_error
    assert server.exec("cat f").body.split() == ["a", "b", "a"]


def test_m21_m22_what_could_block_or_flood_a_read_does_not(server: WireClient) -> None:
    server.exec("mkfifo pipe; truncate -s 1G huge; printf 'x%.0s' $(seq 100000) > line")
    for path in ("pipe", "/dev/zero", "/workspace", "/dev/tty"):
        assert server.call("read_file", file_path=path).is_error
    assert len(server.call("read_file", file_path="huge").text) < 31_000
    assert len(server.call("read_file", file_path="line").text) < 31_000
    assert not server.exec("echo alive").is_error


def test_b053_a_write_tells_size_and_digest_and_makes_parents(server: WireClient) -> None:
    text = "line\n" * 5000
    reply = server.call("write_file", file_path="a/b/c.txt", content=text)
    assert "25000" in reply.text.replace(",", "")
    assert server.exec("sha256sum a/b/c.txt").body.split()[0] in reply.text


def test_b043_b045_b046_links_resolve_inside_only(server: WireClient, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("host-canary")
    server.exec(f"ln -s {canary} out; ln -s / root; ln -s /proc/self/mem mem; ln -s /workspace/late dangling")
    for path in ("out", f"root{canary}", f"/../..{canary}", str(canary), "mem", "/proc/1/environ"):
        reply = server.call("read_file", file_path=path)
        assert "host-canary" not in reply.text
        assert reply.is_error
    server.call("write_file", file_path="dangling", content="here")
    assert server.exec("cat late").body.strip() == "here"
    assert canary.read_text() == "host-canary"


def test_listing_and_searching_agree_with_the_shell(server: WireClient) -> None:
    server.exec(
        "mkdir -p src/deep; echo 'def needle(): pass' > src/deep/a.py; echo other > src/b.py; echo needle > c.txt"
    )
    listed = server.call("list_files", pattern="**/*.py")
    assert "src/deep/a.py" in listed.text
    assert "c.txt" not in listed.text
    found = server.call("search_files", pattern="needle", glob="*.py")
    assert "src/deep/a.py" in found.text
    assert "c.txt" not in found.text


def test_a_hostile_name_is_data(server: WireClient) -> None:
    server.exec("printf needle > $'evil\\n--name'; printf needle > $'caf\\351'")
    assert not server.call("list_files", pattern="*").is_error
    assert not server.call("search_files", pattern="needle").is_error


def test_an_image_comes_as_an_image(server: WireClient) -> None:
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    server.exec(f"echo {png} | base64 -d > dot.png")
    blocks = server.call("read_file", file_path="dot.png").content
    assert [block["mimeType"] for block in blocks if block["type"] == "image"] == ["image/png"]


def test_profiles_and_prefix_change_the_list_alone(start: Callable[..., WireClient]) -> None:
    def names(*arguments: str) -> list[str]:
        return [tool["name"] for tool in start("serve", *arguments).request("tools/list")["result"]["tools"]]

    assert names("--tools", "minimal") == ["exec", "read_file", "write_file"]
    assert "snapshot_delete" in names("--tools", "full")
    assert "snapshot_delete" not in names()
    assert names("--tools", "minimal", "--tool-prefix", "sbx_") == ["sbx_exec", "sbx_read_file", "sbx_write_file"]
