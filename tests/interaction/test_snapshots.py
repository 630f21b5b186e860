"""Snapshots through the tools: every byte, mode, link and time comes back."""

import re

from tests.interaction.wire_client import Reply, WireClient

_FINGERPRINT = (
    "cd / && find workspace root etc/marker usr/local/marker -exec stat -c '%n %f %Y %u %g' {} + | sort; "
    "find workspace root -type f -exec stat -c '%n %h' {} + | sort; "
    "find workspace root -type f -exec sha256sum {} + | sort; find workspace -type l -exec readlink {} + | sort"
)
_FILL = r"""
mkdir -p /workspace/deep/er /usr/local/marker; echo text > /workspace/plain; printf '\000\377' > /workspace/binary
echo run > /workspace/tool; chmod 4751 /workspace/tool; ln -s plain /workspace/link
ln -s /etc/passwd /workspace/absolute
ln /workspace/plain /workspace/hard; truncate -s 1M /workspace/sparse; mkfifo /workspace/pipe
touch -d '2001-02-03 04:05:06.123456789' /workspace/deep /workspace/plain; chmod 500 /workspace/deep
echo home > /root/file; echo etc > /etc/marker; printf x > "/workspace/new
line"
"""


def _snapshot_id(reply: Reply) -> str:
    found = re.search(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{8,}\b", reply.text)
    assert found is not None, reply.text
    return found[0]


def test_b090_wreck_and_restore_brings_everything_back(server: WireClient) -> None:
    server.exec(_FILL)
    before = server.exec(_FINGERPRINT).body
    taken = _snapshot_id(server.call("snapshot_create", note="good"))
    server.exec("chmod 700 /workspace/deep; rm -rf /workspace/* /root/file /etc/marker /usr/local/marker; "
                "mkdir /workspace/plain; echo wreck > /workspace/link; rm -f /usr/bin/env")  # fmt: skip
    assert server.exec(_FINGERPRINT).body != before
    restored = server.call("snapshot_restore", snapshot=taken[:8])
    assert not restored.is_error, restored.text
    assert server.exec(_FINGERPRINT).body == before
    assert server.exec("/usr/bin/env true").header.startswith("exit=0 ")


def test_b095_a_restore_can_be_undone(server: WireClient) -> None:
    server.exec("echo one > f")
    first = _snapshot_id(server.call("snapshot_create", note="first"))
    server.exec("echo two > f; echo extra > g")
    restored = server.call("snapshot_restore", snapshot=first)
    assert server.exec("cat f; ls").body.split() == ["one", "f"]
    others = [found for found in re.findall(r"\b[0-9a-f]{8,64}\b", restored.text) if not first.startswith(found[:8])]
    assert others, restored.text
    server.call("snapshot_restore", snapshot=others[0])
    assert server.exec("cat f g").body.split() == ["two", "extra"]


def test_some_paths_can_be_restored_alone(server: WireClient) -> None:
    server.exec("echo one > f; echo one > g; mkdir d; echo deep > d/x")
    taken = _snapshot_id(server.call("snapshot_create"))
    server.exec("echo two > f; echo two > g; rm -r d")
    assert not server.call("snapshot_restore", snapshot=taken, paths=["f", "/workspace/d"]).is_error
    assert server.exec("cat f g d/x").body.split() == ["one", "two", "deep"]


def test_a_virtual_environment_with_absolute_links_survives(server: WireClient) -> None:
    made = server.exec("/usr/bin/python3 -m venv --without-pip /workspace/venv && venv/bin/python -c 'print(1)'")
    assert made.body.strip().endswith("1"), made.text
    before = server.exec("find venv | sort | xargs stat -c '%n %f %Y'").body
    taken = _snapshot_id(server.call("snapshot_create"))
    server.exec("rm -rf venv")
    server.call("snapshot_restore", snapshot=taken)
    assert server.exec("find venv | sort | xargs stat -c '%n %f %Y'").body == before
    assert server.exec("venv/bin/python -c 'import sys; print(sys.prefix)'").body.strip() == "/workspace/venv"


def test_b093_a_snapshot_of_a_running_sandbox_says_that_it_stood_still(server: WireClient) -> None:
    server.exec("while :; do echo x >> counter; sleep 0.01; done", run_in_background=True)
    server.exec("sleep 0.2; echo fixed > f")
    taken = server.call("snapshot_create", note="live")
    assert not taken.is_error
    first = server.exec("wc -l < counter").body
    assert server.exec("sleep 0.2; wc -l < counter").body != first, "the job runs on"
    made = server.call("sandbox_create", name="copy", from_snapshot=_snapshot_id(taken))
    assert not made.is_error, made.text
    assert server.exec("cat f", sandbox="copy").body.strip() == "fixed"


def test_snapshots_are_listed_and_deleted(server: WireClient, start: object) -> None:
    first = _snapshot_id(server.call("snapshot_create", note="the first"))
    server.exec("echo x > f")
    server.call("snapshot_create", note="the second")
    listed = server.call("snapshot_list").text
    assert "the first" in listed
    assert "the second" in listed
    assert first[:8] in listed
    assert listed.count("size=") == 2
