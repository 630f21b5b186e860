"""What it costs to start a server, and what one pays once."""

import compileall
import sys
from pathlib import Path

import mcp_sandbox
from tests.benchmarks.calls import call
from tests.benchmarks.measuring import Row, Samples, process_floor
from tests.interaction.wire_client import WireClient

__all__ = ["first_row", "start_rows"]


def first_row(client: WireClient) -> Row:
    """The first command ever in a state directory."""
    samples = Samples()
    with samples.timed():
        call(client, "exec", command="true")
    return Row.of("the first `exec` in a new state directory (builds the base and tests every fence, once)", samples)


def start_rows(home: Path, count: int) -> list[Row]:
    """A new server for every sample, with a sandbox that exists but does not run."""
    # Else every server compiles what was changed since the last run, where nothing may be written.
    compileall.compile_dir(str(Path(mcp_sandbox.__file__).parent), quiet=2)
    floor = process_floor("`python -c pass`", count, sys.executable, "-c", "pass")
    answered, first, again = Samples(), Samples(), Samples()
    for number in range(count + 1):
        if number == 1:  # what came first does not count
            answered, first, again = Samples(), Samples(), Samples()
        with answered.timed():
            client = WireClient(home)
            client.request("tools/list")
        with first.timed():
            call(client, "exec", command="true")
        with again.timed():
            call(client, "exec", command="true")
        client.close()
    started = "start a server: spawn to the answer of `tools/list`"
    return [
        Row.of(started, answered, floor=floor, target=2 * floor.median),
        Row.of("first `exec` of that server (starts the sandbox)", first),
        Row.of("second `exec` of that server", again),
    ]
