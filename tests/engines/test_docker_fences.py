"""What the fences of containers are taken for, if a probe finds what it must not find, or finds nothing at all."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from mcp_sandbox.engines.docker_fences import Evidence, judge
from mcp_sandbox.engines.probing import Answer

__all__: list[str] = []

STATUS: Final = (
    "Uid:\t1000 1000 1000 1000\nGid:\t1000 1000 1000 1000\nCapInh:\t0\nCapPrm:\t0\nCapEff:\t0\nCapBnd:\t0\nCapAmb:\t0\n"
    "NoNewPrivs:\t1\nSeccomp:\t2\n"
)
NOT_PERMITTED: Final = Answer(1, b"")


def _text(text: str, error: int = 0) -> Answer:
    return Answer(error, text.encode())


GOOD: Final[Mapping[str, Answer]] = {
    "environment": _text("HOME=/home/sandbox\0"),
    "processes": _text("HOME=/home/sandbox\0guest\0"),
    "status": _text(STATUS),
    "devices": _text("head\nhead\n    lo: 0 0\n"),
    "connect": Answer(111, b""),
    "numbers": _text("1\x007\x009\0self\0"),
    "descriptors": _text("0\x001\x002\x003\0"),
    "search host": Answer(2, b""),
    "search inside": _text("/var/tmp/planted"),
    "canary /tmp/canary": Answer(2, b""),
    "allowed": Answer(0, b""),
    "call mount": NOT_PERMITTED,
    "change nothing": Answer(0, b""),
    "change kernel/hostname": Answer(30, b""),
    "trace init": NOT_PERMITTED,
    "change init": NOT_PERMITTED,
    "init environment": NOT_PERMITTED,
    "init root": NOT_PERMITTED,
    "agent": NOT_PERMITTED,
    "children": _text("22", 11),
}
EVIDENCE: Final = Evidence(
    inside=GOOD, environment={"HOME": "/home/sandbox"}, secret="secret", token="token", planted="planted",
    own_kernel=False,
)  # fmt: skip


def _broken(inside: Mapping[str, Answer]) -> list[str]:
    return [fence.name for fence in judge(replace(EVIDENCE, inside=inside)) if not fence.holds]


def test_what_is_as_it_must_be_holds() -> None:
    assert _broken(GOOD) == []


@pytest.mark.parametrize(
    ("fence", "name", "answer"),
    [
        ("files", "canary /tmp/canary", _text("token")),
        ("files", "search host", _text("/tmp/mcp-sandbox-canary-token")),
        ("files", "search inside", Answer(2, b"")),
        ("environment", "environment", _text("HOME=/home/sandbox\0SSH_AUTH_SOCK=/run/x\0")),
        ("environment", "processes", _text("MCP_SANDBOX_CANARY=secret\0")),
        ("network", "connect", Answer(0, b"")),
        ("network", "devices", _text("head\nhead\n lo: 0\n eth0: 0\n")),
        ("processes", "numbers", _text("".join(f"{number}\0" for number in range(1, 200)))),
        ("user", "status", _text(STATUS.replace("Uid:\t1000 1000", "Uid:\t1000 0"))),
        ("capabilities", "status", _text(STATUS.replace("CapBnd:\t0", "CapBnd:\t2000"))),
        ("capabilities", "status", _text(STATUS.replace("CapAmb:\t0\n", ""))),
        ("no_new_privs", "status", _text(STATUS.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0"))),
        ("system calls", "status", _text(STATUS.replace("Seccomp:\t2", "Seccomp:\t0"))),
        ("system calls", "call mount", Answer(0, b"")),
        ("system calls", "allowed", NOT_PERMITTED),
        ("kernel settings", "change kernel/hostname", Answer(0, b"")),
        ("agent", "trace init", Answer(0, b"")),
        ("agent", "init environment", _text("A=b\0")),
        ("agent", "agent", _text("guest\0")),
        ("descriptors", "descriptors", _text("0\x001\x002\x003\x004\0")),
        ("process limit", "children", _text("64")),
        ("process limit", "children", Answer(11, b"")),
    ],
)
def test_what_is_not_as_it_must_be_breaks_its_fence_and_no_other(fence: str, name: str, answer: Answer) -> None:
    assert _broken({**GOOD, name: answer}) == [fence]


@pytest.mark.parametrize("name", [name for name in GOOD if not name.startswith(("canary", "call", "change"))])
def test_what_the_probe_did_not_say_holds_nothing(name: str) -> None:
    assert _broken({key: answer for key, answer in GOOD.items() if key != name})
