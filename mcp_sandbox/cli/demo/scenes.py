"""The scenes of the demo. Each one shows what a tool answers, and checks that it is true."""

import asyncio
import contextlib
import os
import re
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from mcp_sandbox.cli.demo.agent import Agent, Reply
from mcp_sandbox.cli.demo.display import Display, duration
from mcp_sandbox.cli.demo.stage import Stage

__all__ = ["SCENES", "SECRET", "Show", "UnexpectedError"]

SECRET: Final = {"DEMO_API_KEY": "sk-demo-5f2c9e71b0"}
"""In the environment of the server, and nowhere inside."""

_AT_ONCE: Final = 20
_EACH_S: Final = 0.5
_TIMEOUT_S: Final = 0.5

_PROGRAM: Final = """\
# Prints the prime numbers up to a limit.
n=2
while [ $n -le 20 ]; do
    d=2
    while [ $((d * d)) -le $n ] && [ $((n % d)) -ne 0 ]; do d=$((d + 1)); done
    if [ $((d * d)) -gt $n ]; then printf '%s ' $n; fi
    n=$((n + 1))
done
echo
"""

_FILL: Final = (
    "mkdir data && cd data && seq 1000 | split -l 1 -a 3 - part- && chmod 640 part-aaa && touch -d 2001-02-03 part-aab "
    "&& ln -s part-aaa link && ln part-aac twin && ls | wc -l"
)

_FINGERPRINT: Final = (
    "cd / && { find workspace etc ! -type d | sort | xargs stat -c '%N %f %h %s %y'; "
    "find workspace etc -type d | sort | xargs stat -c '%n %f %y'; "
    "find workspace etc -type f | sort | xargs sha256sum; } | sha256sum | cut -c 1-16; "
    "find workspace etc | wc -l"
)

_DISASTER: Final = "rm -rf /workspace/* /etc /usr/bin"

_ENDLESS: Final = "echo started; setsid sleep 1000 & (trap '' TERM; sleep 1000) & sleep 1000"

_JOB: Final = "for step in 1 2 3; do echo step $step; sleep 0.2; done; echo built"

_LOOK: Final = """\
echo user: $(id -un), $(cat /proc/self/uid_map)
echo interfaces: $(tail -n +3 /proc/net/dev | cut -d: -f1)
echo routes: $(tail -n +2 /proc/net/route | wc -l)
[ -z "$BASH_VERSION" ] || echo connect: $( (: </dev/tcp/192.0.2.1/80) 2>&1 | tail -n 1 | sed 's/.*: //')
echo secret: $({ env; cat /proc/[0-9]*/environ; } 2>/dev/null | grep -ac "$1")
echo home: $(ls -A "$2" 2>/dev/null | wc -l)
echo state: $(ls -A "$3" 2>/dev/null | wc -l)
echo processes: $(ls -d /proc/[0-9]* | wc -l)
echo seccomp: $(grep -c -e '^Seccomp:.2' -e '^NoNewPrivs:.1' /proc/self/status)
"""


class UnexpectedError(Exception):
    """Something that the demo shows is not so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """What a scene works with."""

    agent: Agent
    display: Display
    stage: Stage

    async def call(self, tool: str, what: str, **arguments: Any) -> Reply:
        """Call a tool in front of the reader."""
        self.display.doing(f"{tool} {what}")
        reply = await self.agent.call(tool, **arguments)
        self.display.call(tool, what, reply.taken_s)
        return reply

    async def exec(self, command: str, *, what: str = "", answer: str = "body", **arguments: Any) -> Reply:
        """Run a command in front of the reader, and show its output, the whole answer, or nothing."""
        reply = await self.call("exec", what or command, command=command, **arguments)
        self.display.output({"body": reply.body, "all": reply.text, "": ""}[answer])
        return reply

    def check(self, holds: bool, claim: str, found: object) -> None:
        """Go on only if a claim holds.

        Raises:
            UnexpectedError: It does not.
        """
        if not holds:
            raise UnexpectedError(f"Expected that {claim}, but found: {found}")

    def check_project(self, before: object) -> None:
        """Go on only if the project on the host is as it was."""
        now = self.stage.project_as_it_is()
        self.check(now == before, "the project on the host is untouched", sorted(now))


async def _first_command(show: Show) -> None:
    show.display.scene("The first command: nothing to create, nothing to install")
    reply = await show.exec("uname -s; id -un; ls")
    show.check(reply.body.split() == ["Linux", "root", "notes.txt"], "a command runs in the project", reply.text)
    show.display.note("(the first use on a machine also builds what all sandboxes stand on)")
    reply = await show.exec("echo out; echo err >&2; exit 7", answer="all")
    show.check(reply.header.startswith("exit=7 "), "the exit code arrives", reply.text)


async def _program(show: Show) -> None:
    show.display.scene("A program, written, run and edited")
    host = show.stage.project_as_it_is()
    await show.call("write_file", "primes.sh", file_path="primes.sh", content=_PROGRAM)
    reply = await show.exec("sh primes.sh")
    show.check(reply.body.split()[-1:] == ["19"], "the program runs", reply.text)
    await show.call("edit_file", "primes.sh: 20 becomes 50", file_path="primes.sh", old_string="20", new_string="50")
    reply = await show.exec("sh primes.sh; echo changed > notes.txt")
    show.check("47" in reply.body, "the edit is there", reply.text)
    show.check_project(host)
    show.display.proof(f"on the host the project is as it was: {', '.join(host)} alone, not a byte changed")


async def _disaster(show: Show) -> None:
    show.display.scene("A snapshot, a disaster, and everything back")
    await show.exec(_FILL, what="write 1,000 files, with links, modes and times", answer="")
    before = (await show.agent.call("exec", command=_FINGERPRINT)).body.split()
    show.check(len(before) == 2 and int(before[1]) > 1000, "there are files to lose", before)
    taken = await show.call("snapshot_create", "before the disaster", note="before the disaster")
    await show.exec(_DISASTER, answer="")
    reply = await show.exec("ls", answer="all")
    show.check(reply.header.startswith("exit=127 "), "not even a shell is left", reply.text)
    snapshot = str(taken.facts["id"])[:12]
    await show.call("snapshot_restore", snapshot, snapshot=snapshot)
    after = (await show.agent.call("exec", command=_FINGERPRINT)).body.split()
    show.check(after == before, "everything is back", f"{after} instead of {before}")
    show.display.proof(
        f"{int(before[1]):,} files and directories are back: every byte, mode, link and time (sha256 {before[0]})"
    )


async def _at_once(show: Show) -> None:
    show.display.scene(f"{_AT_ONCE} commands at once")
    command = f"sleep {_EACH_S:g}; echo {{}}"
    show.display.doing(f"{_AT_ONCE} x exec")
    began_s = time.perf_counter()
    replies = await asyncio.gather(
        *(show.agent.call("exec", command=command.format(number)) for number in range(_AT_ONCE))
    )
    taken_s = time.perf_counter() - began_s
    show.display.call("exec", f"{_AT_ONCE} x {command.format('$i')!r}", taken_s)
    said = [reply.body.strip() for reply in replies]
    show.check(said == [str(number) for number in range(_AT_ONCE)], "every command got its own answer", said)
    show.check(taken_s < _AT_ONCE * _EACH_S, "they ran at once", duration(taken_s))
    show.display.proof(f"every answer is right; one after another it would have been {_AT_ONCE * _EACH_S:g} s")


async def _timeout(show: Show) -> None:
    show.display.scene("A command that does not end")
    what = f"timeout_s={_TIMEOUT_S:g}: three sleeps, two in hiding"
    reply = await show.exec(_ENDLESS, what=what, answer="", timeout_s=_TIMEOUT_S)
    show.display.output("\n".join([reply.header, *reply.body.splitlines()[-1:]]))
    show.check(reply.header.startswith("ended=timeout ") and "started" in reply.body, "the timeout holds", reply.text)
    left = (await show.agent.call("exec", command="grep -sl '^sleep' /proc/[0-9]*/comm | wc -l")).body.strip()
    show.check(left == "0", "everything that it had started is dead", f"{left} processes")
    show.display.proof("its output is kept; all it had started is dead, what was in hiding too")


async def _job(show: Show) -> None:
    show.display.scene("A job in the background")
    reply = await show.exec(_JOB, what="run_in_background: three steps of a build", answer="", run_in_background=True)
    show.display.output(reply.header)
    found = re.match(r"job_id=(j\d+) status=running ", reply.header)
    show.check(found is not None, "it runs on as a job", reply.text)
    job_id = found[1] if found else ""
    meanwhile = await show.exec("echo meanwhile, something else")
    show.check("meanwhile" in meanwhile.body, "other commands run meanwhile", meanwhile.text)
    reply = await show.call("job", f"{job_id}: wait", job_id=job_id, action="wait")
    show.display.output(reply.text)
    show.check("built" in reply.body, "the job's output is whole", reply.text)


async def _isolation(show: Show) -> None:
    show.display.scene("What a sandbox sees of this machine")
    home, value = _home(), next(iter(SECRET.values()))
    # In two pieces: the command line itself must not be what is found.
    words = [f"{value[:6]}'{value[6:]}'", shlex.quote(home), shlex.quote(str(show.stage.state))]
    command = f"set -- {' '.join(words)}\n{_LOOK}"
    reply = await show.call("exec", "look around", command=command)
    seen = dict(line.split(": ", 1) for line in reply.body.splitlines() if ": " in line)
    user, _, start, *_ = [*seen["user"].replace(",", "").split(), "", "", ""]
    show.check(seen.get("interfaces") == "lo" and seen.get("routes") == "0", "there is no network", seen)
    show.check(seen.get("secret") == "0", "the server's environment is nowhere", seen)
    show.check(seen.get("home") == seen.get("state") == "0", "the host's files are not there", seen)
    show.check(seen.get("seccomp") == "2", "system calls are filtered", seen)
    show.check(start.isdecimal() and start != "0", "root inside is nobody special outside", seen)
    fact = show.display.fact
    whose = "your own" if start == str(os.geteuid()) else "nobody's"
    fact("user", f"{user} inside; outside its uid is {start}, {whose}")
    fact("network", f"lo alone, no route; {seen.get('connect', '').lower() or 'no bash to try a connection with'}")
    fact("environment", "a key planted in the server's environment is in no process")
    fact("files", f"your home: 0 of its {len(_names(home))} entries; the server's state: none")
    fact("processes", f"{seen['processes']} of the {sum(map(str.isdecimal, _names('/proc')))} on this machine")
    fact("kernel", "the host's, behind a seccomp filter, without new privileges")


def _home() -> str:
    """Return the host's home directory; where there is none, that of everybody."""
    home = os.path.expanduser("~")  # noqa: PTH111
    return home if home.strip("/") else "/home"


def _names(directory: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(directory)  # noqa: PTH208
    return []


SCENES: Final[tuple[Callable[[Show], Awaitable[None]], ...]] = (
    _first_command, _program, _disaster, _at_once, _timeout, _job, _isolation,
)  # fmt: skip
"""In their order. The sandbox of the first one is that of all."""
