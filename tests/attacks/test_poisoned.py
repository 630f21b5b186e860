"""SNAP-06: what somebody who had a sandbox left in it for whoever restores it."""

import re

import pytest

from tests.attacks.world import Host
from tests.interaction.wire_client import WireClient


@pytest.mark.usefixtures("takes_snapshots")
def test_snap06_a_payload_in_a_snapshot_runs_neither_outside_nor_by_itself(server: WireClient, host: Host) -> None:
    """SNAP-06: files that shells read at their start are read by none that a call starts."""
    payload = f"touch /workspace/poisoned {host.directory}/poisoned"
    files = "~/.bashrc ~/.profile ~/.bash_profile ~/.bash_login ~/.shrc ~/.bash_logout /etc/profile.d/x.sh"
    server.exec(f"mkdir -p /etc/profile.d {host.directory}; for f in {files}; do echo '{payload}' >> $f; done")
    taken = server.call("snapshot_create", note="p").text
    snapshot = re.search(r"[0-9a-f]{8,}", taken)
    assert snapshot is not None, taken
    assert not server.call("snapshot_restore", snapshot=snapshot[0]).is_error
    for _ in range(2):
        assert "poisoned" not in server.exec("ls").body
    assert "poisoned" not in server.exec("sh -c ls; bash -c ls").body
    assert "poisoned" in server.exec("bash -lc true; ls").body, "the control: a login shell runs it"
    assert host.untouched()
