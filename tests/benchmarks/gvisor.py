"""Provider `gvisor`: what a kernel of one's own costs, and what runs goes on in a restore; empty without runsc."""

import re
import shutil
from pathlib import Path

from tests.benchmarks.calls import call, structured
from tests.benchmarks.commands import resident_mib
from tests.benchmarks.measuring import Floor, Row, Samples, process_floor
from tests.interaction.wire_client import WireClient

__all__ = ["gvisor_rows"]

COUNTING = "import time\nn = 0\nwhile True:\n    n += 1\n    open('/tmp/n', 'w').write(str(n))\n    time.sleep(0.05)\n"
SHELLS = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/bash", ["bash", "-c", "true"], os.environ), 0)
    print((time.perf_counter() - began) * 1000)
"""
BEHIND = 'exec >/dev/null 2>&1 </dev/null; setsid python3 -c "$CODE" &'


def gvisor_rows(home: Path, count: int) -> list[Row]:
    """Through MCP: commands, starts, and snapshots while a Python program runs."""
    if shutil.which("runsc") is None:
        return []
    few = max(3, count // 3)
    with WireClient(home, "serve", "--provider", "gvisor", "--tools", "full") as client:
        call(client, "exec", command="true")
        one = Samples().repeat(count * 3, lambda: call(client, "exec", command="true"))
        floor = _shell_inside(client, count * 3)
        made, gone, held, back, forked = Samples(), Samples(), Samples(), Samples(), Samples()
        for number in range(few):
            with made.timed():
                call(client, "sandbox_create", name=f"g{number}")
            with gone.timed():
                call(client, "sandbox_destroy", sandbox=f"g{number}")
        call(client, "exec", command=f"cat > /tmp/code <<'END'\n{COUNTING}END\nCODE=$(cat /tmp/code); {BEHIND}")
        call(client, "exec", command="until [ -s /tmp/n ]; do sleep 0.01; done")
        for number in range(few):
            with held.timed():
                taken = call(client, "snapshot_create")
            with back.timed():
                call(client, "snapshot_restore", snapshot=structured(taken)["id"][:16])
            with forked.timed():
                call(client, "sandbox_fork", name=f"f{number}")
            call(client, "sandbox_destroy", sandbox=f"f{number}")
        assert "python3" in call(client, "exec", command="cat /proc/[0-9]*/cmdline | tr '\\0' ' '").text
        memory = Samples(values=[_kernels_mib(home)])
    return [
        Row.of(
            "gvisor: `exec` of `true`",
            one,
            floor=Floor(what="`bash -c true`, started by a program in the same sandbox", median=floor.median),
            target=6.0,
        ),
        Row.of(
            "gvisor: `bash -c true`, started by a program in the sandbox: what gVisor's kernel takes for it",
            floor,
            floor=process_floor("`bash -c true`", few, "bash", "-c", "true"),
        ),
        Row.of("gvisor: `sandbox_create`", made),
        Row.of("gvisor: `sandbox_destroy`", gone),
        Row.of("gvisor: `snapshot_create` while a Python program runs", held),
        Row.of("gvisor: `snapshot_restore` of that (before it, a snapshot for the way back)", back, target=200.0),
        Row.of("gvisor: `sandbox_fork` of that", forked),
        Row.of("gvisor: memory of one sandbox with a Python program, runsc's processes", memory, unit="MiB"),
    ]


def _shell_inside(client: WireClient, count: int) -> Samples:
    """Take the time of a shell's whole life where no call passes the border."""
    said = call(client, "exec", command=f"python3 -c '{SHELLS}' {count}").text
    return Samples(values=[float(line) for line in said.splitlines() if re.fullmatch(r"[0-9.]+", line)])


def _kernels_mib(home: Path) -> float:
    """Return what the processes of the one sandbox take that runs below `home`."""
    (record,) = [path for path in home.glob("providers/gvisor/sandboxes/*/init.json") if _lives(path)]
    init = re.search(r'"pid": (\d+)', record.read_text("ascii"))
    assert init is not None
    pids = [path.parent.name for path in Path("/proc").glob("[0-9]*/status") if _parent(path) == init[1]]
    return sum(resident_mib(int(pid)) for pid in pids)


def _lives(record: Path) -> bool:
    found = re.search(r'"pid": (\d+)', record.read_text("ascii"))
    return found is not None and Path(f"/proc/{found[1]}").exists()


def _parent(status: Path) -> str:
    try:
        found = re.search(r"PPid:\s+(\d+)", status.read_text("utf-8", "replace"))
    except OSError:
        return ""
    return found[1] if found else ""
