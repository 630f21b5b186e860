"""Category A: reading and writing the host's files, through the tools of a server."""

import contextlib
import os
import re
from pathlib import Path

import pytest

from tests.attacks.world import Attacked, Host, finds, leaks, on_host
from tests.interaction.wire_client import WireClient, processes_below

ATTACKED = ("local", "docker")

UPWARDS = "../" * 12


def test_fs01_fs06_a_secret_of_the_host_is_reached_by_no_path(server: WireClient, host: Host) -> None:
    """FS-01, FS-06: as `test_fs01` of the contract, and over every tool."""
    script = (
        f"for p in '' /proc/1/root /proc/self/root /proc/1/cwd; do cat $p{host.secret}; ls -la $p{host.directory}; "
        f"ls -la $p{host.home} 2>&1; done"
    )
    assert finds(host.token, on_host(script)), "the control: outside the same script finds it"
    server.exec(script)
    server.exec("grep -rIs CANARY /tmp /home /root /mnt /var /opt /srv /etc /run")
    for path in (f"{host.secret}", f"/proc/1/root{host.secret}", f"/proc/self/root{host.secret}"):
        assert server.call("read_file", file_path=path).is_error
    assert not leaks(host, server)


def test_fs03_dots_lead_out_of_no_tool(server: WireClient, host: Host) -> None:
    """FS-03."""
    relative = str(host.directory).lstrip("/")
    calls = {
        "read_file": {"file_path": f"{UPWARDS}{relative}/secret.txt"},
        "write_file": {"file_path": f"{UPWARDS}{relative}/pwned", "content": "x"},
        "edit_file": {
            "file_path": f"/workspace/../{relative}/secret.txt", "old_string": "CANARY", "new_string": "X",
        },
        "list_files": {"pattern": "*", "path": f"/workspace/{UPWARDS}{relative}"},
        "search_files": {"pattern": "CANARY", "path": f"/workspace/{UPWARDS}{relative}"},
    }  # fmt: skip
    for tool in ("read_file", "edit_file", "list_files", "search_files"):
        answer = server.call(tool, **calls[tool])
        assert answer.is_error or host.token not in answer.text, tool
    server.call("write_file", **calls["write_file"])
    assert host.untouched()
    assert not leaks(host, server)
    # The control: the same calls find and change what lies at that path inside.
    server.exec(f"mkdir -p {host.directory}; echo CANARY-inside > {host.secret}")
    for tool in ("read_file", "search_files"):
        assert "CANARY-inside" in server.call(tool, **calls[tool]).text
    assert not server.call("edit_file", **calls["edit_file"]).is_error
    assert server.exec(f"cat {host.secret}; ls {host.directory}").body.split() == ["X-inside", "pwned", "secret.txt"]


def test_fs04_planted_links_lead_tools_nowhere(server: WireClient, host: Host) -> None:
    """FS-04, CVE-2025-53109, CVE-2026-39861: as `test_b043` of the contract, and over the tools that search."""
    server.exec(f"ln -s {host.secret} l; ln -s {host.directory} d; ln -s {host.directory}/made dangling")
    for tool, arguments in (
        ("read_file", {"file_path": "l"}),
        ("read_file", {"file_path": "d/secret.txt"}),
        ("write_file", {"file_path": "d/pwned", "content": "x"}),
        ("write_file", {"file_path": "l", "content": "overwritten"}),
        ("write_file", {"file_path": "dangling", "content": "x"}),
        ("edit_file", {"file_path": "l", "old_string": "CANARY", "new_string": "X"}),
        ("search_files", {"pattern": "CANARY", "path": "/workspace"}),
        ("list_files", {"pattern": "**/*", "path": "/workspace"}),
    ):
        server.call(tool, **arguments)
    assert host.untouched()
    assert not leaks(host, server)


def test_fs08_programs_and_accounts_of_the_host_stay_as_they_are(server: WireClient, attacked: Attacked) -> None:
    """FS-08: inside they change where root is inside, which is the control; the layer below does not."""
    passwd, program = Path("/etc/passwd").read_bytes(), Path("/usr/bin/env").stat()
    script = "echo x > /usr/bin/zzz; echo x >> /etc/passwd; touch /usr/lib/zzz; rm -f /usr/bin/env; ls /usr/bin/env"
    server.exec(script)
    edited = server.call("edit_file", file_path="/etc/passwd", old_string="root:x", new_string="toor:x")
    assert edited.is_error is not attacked.capabilities.root_inside, edited.text
    seen = server.exec("cat /usr/bin/zzz; tail -n 1 /etc/passwd; ls /usr/bin/env; head -c 4 /etc/passwd").text
    assert ("toor" in seen) is attacked.capabilities.root_inside
    assert ("No such file" in seen.replace("zzz: No such file", "")) is attacked.capabilities.root_inside
    assert Path("/etc/passwd").read_bytes() == passwd
    assert Path("/usr/bin/env").stat() == program
    assert not Path("/usr/bin/zzz").exists()
    assert not Path("/usr/lib/zzz").exists()


@pytest.mark.usefixtures("embedded")
def test_fs19_to_the_host_a_program_is_neither_root_nor_more_than_its_server(server: WireClient, home: Path) -> None:
    """FS-19: a range of ids that nobody else has, or the ordinary user who started the server."""
    server.exec("touch /workspace/own; exec -a own-sleep sleep 30", run_in_background=True)
    server.exec("while ! test -e /workspace/own; do sleep 0.01; done; sleep 0.1")
    owners = {path.stat().st_uid for path in (home / "providers/local/layers").glob("*/workspace/own")}
    users: set[tuple[int, ...]] = set()
    for pid in processes_below(server.process.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"own-sleep"):
                uids = re.search(r"^Uid:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
                assert uids is not None
                users.add(tuple(int(uid) for uid in uids[1].split()))
    assert len(users) == 1, "the control: the process is seen from outside"
    assert len(owners) == 1
    uid = owners.pop()
    assert users == {(uid,) * 4}
    assert uid != 0
    if os.getuid() == 0:
        assert uid > 1_000_000, "an id of an account would own files of the host"
    else:
        assert uid == os.getuid()


@pytest.mark.parametrize("place", ["/etc", "/usr"])
def test_fs01_what_the_host_does_not_let_everybody_read_is_not_there(server: WireClient, place: str) -> None:
    """FS-01: root inside may read whatever its ids own, and an id of the host's root is among them."""
    found = on_host(f"find {place} ! -type l ! -perm -o=r 2>/dev/null").decode().split("\n")
    private = [path for path in found if path and path not in ("/etc/shadow", "/etc/gshadow")]
    if not private:
        pytest.skip(f"there is nothing private below {place} on this machine")
    listed = "\n".join(private)
    shown = server.exec('while read -r p; do test -e "$p" && cat "$p"; done 2>/dev/null; true', stdin=listed + "\n")
    assert shown.body.replace("(no output)", "").strip() == "", shown.body[:500]
    inside = server.exec("cat /etc/shadow /etc/gshadow 2>/dev/null | grep -v '^[^:]*:[*!x]*:' | head -n 1; true").body
    assert inside.replace("(no output)", "").strip() == ""
