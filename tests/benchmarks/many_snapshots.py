"""A thousand snapshots in a row of one sandbox: what each costs, how deep the sandbox gets, what the disk holds.

`python -m tests.benchmarks.many_snapshots [COUNT]`, apart from the other rows: it takes minutes.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.calls import call, structured
from tests.benchmarks.measuring import Samples
from tests.benchmarks.place import described, scratch_directory
from tests.interaction.wire_client import WireClient

__all__: list[str] = []

PARTS = 10
FREED_S = 180.0


def main(count: int) -> None:
    """Take them, restore the first and the last, delete all but those; print a line for each part."""
    with scratch_directory(fresh=True) as scratch:
        home = scratch / "state"
        print(f"{count} snapshots on {described(scratch)}")
        with WireClient(home, "serve", "--tools", "full") as client:
            box = structured(call(client, "sandbox_create", name="box"))["sandboxes"][0]["id"]
            taken: list[str] = []
            for part in range(PARTS):
                taking, running, listing = Samples(), Samples(), Samples()
                for number in range(count // PARTS):
                    with running.timed():
                        call(client, "exec", command=f"echo {number} > file{number % 50}", sandbox="box")
                    with taking.timed():
                        taken.append(structured(call(client, "snapshot_create", sandbox="box"))["id"])
                with listing.timed():
                    call(client, "snapshot_list")
                print(
                    f"{(part + 1) * count // PARTS:5d}: snapshot {taking.median:.2f} ms ({taking.p95:.2f}), "
                    f"exec before it {running.median:.2f} ms ({running.p95:.2f}), list {listing.median:.0f} ms, "
                    f"{_depth(home, box)} layers in the sandbox, {_layers(home)} on the disk, "
                    f"{_disk_mib(home):.1f} MiB",
                    flush=True,
                )
            for name, which in (("first", 0), ("last", -1)):
                back = Samples()
                with back.timed():
                    call(client, "snapshot_restore", snapshot=taken[which], sandbox="box")
                print(f"restore of the {name}: {back.median:.1f} ms")
            deleting = Samples()
            for one in taken[1:-1]:
                with deleting.timed():
                    call(client, "snapshot_delete", snapshot=one)
            print(f"delete: {deleting.median:.2f} ms ({deleting.p95:.2f})")
            before, began = _layers(home), time.monotonic()
            while _layers(home) > before // 2 and time.monotonic() - began < FREED_S:
                time.sleep(1)  # it goes on behind the answers, and what is young is not touched
            took_s = time.monotonic() - began
            print(f"{took_s:.0f} s afterwards: {_layers(home)} layers on the disk, {_disk_mib(home):.1f} MiB")


def _depth(home: Path, box: str) -> int:
    state = json.loads((home / "providers" / "local" / "sandboxes" / box / "state.json").read_bytes())
    return len(state["layers"])


def _layers(home: Path) -> int:
    return sum(1 for _ in (home / "providers" / "local" / "layers").iterdir())


def _disk_mib(home: Path) -> float:
    done = subprocess.run(["du", "-sk", str(home / "providers" / "local" / "layers")], capture_output=True, check=False)
    return int(done.stdout.split()[0]) / 1024


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
