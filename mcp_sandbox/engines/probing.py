"""Questions to the guest agent's `probe` role: what to try, as its arguments, and what came of it, from its answers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mcp_sandbox.core.errors import ProviderError
from mcp_sandbox.engines.seccomp import system_call

__all__ = [
    "LIMITED", "NAMESPACE_KINDS", "Answer", "Question", "answers", "arguments", "limit_questions", "questions",
]  # fmt: skip

NAMESPACE_KINDS: Final = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
CHILDREN: Final = 64
"""More processes than the throw-away sandbox may have."""

LIMITED: Final[Mapping[str, int]] = {"memory_bytes": 32 << 20, "disk_bytes": 16 << 20, "inodes": 512}
"""Limits of the second throw-away sandbox, which tries to have twice as much."""

Question = tuple[str, ...]
"""One operation of the probe with its arguments."""

_NEW_USER: Final = 0x10000000
_CHILD_DIES: Final = 17  # SIGCHLD
_TIOCSTI: Final = 0x5412
_KEYRING_OF_SESSION: Final = -3
_OTHER_CALLS: Final[Mapping[str, tuple[int, int]]] = {  # x86_64, aarch64
    "ptrace": (101, 117), "kill": (62, 129), "getppid": (110, 173),
}  # fmt: skip
_FORBIDDEN: Final[Mapping[str, tuple[str, ...]]] = {
    "unshare": (str(_NEW_USER),),
    "clone": (str(_NEW_USER | _CHILD_DIES),),
    "clone3": ("*", "88"),
    "setns": ("-1",),
    "mount": ("@none", "@/tmp", "@tmpfs"),
    "umount2": ("@/proc", "2"),
    "pivot_root": ("@/tmp", "@/tmp"),
    "fsopen": ("@tmpfs",),
    "open_tree": ("-100", "@/tmp", "1"),
    "move_mount": ("-100", "@/tmp", "-100", "@/tmp"),
    "mount_setattr": ("-100", "@/tmp", "0", "*", "32"),
    "bpf": ("0", "*", "128"),
    "perf_event_open": ("*", "0", "-1", "-1", "0"),
    "userfaultfd": ("1",),
    "io_uring_setup": ("4", "*"),
    "io_uring_register": ("-1",),
    "io_setup": ("1", "*"),
    "keyctl": ("0", str(_KEYRING_OF_SESSION), "0"),
    "add_key": ("@user", "@probe", "@x", "1", str(_KEYRING_OF_SESSION)),
    "request_key": ("@user", "@probe", "0", str(_KEYRING_OF_SESSION)),
    "open_by_handle_at": ("-100", "*", "0"),
    "name_to_handle_at": ("-100", "@/tmp", "*", "*", "0"),
    "process_vm_readv": ("1", "*", "1", "*", "1", "0"),
    "init_module": ("0", "0", "@"),
    "finit_module": ("-1", "@", "0"),
    "swapon": ("@/no/such/file",),
    "acct": ("@/no/such/file",),
    "fanotify_init": ("0", "0"),
    "quotactl": ("0x80000100",),
    "syslog": ("3", "*", "1"),
    "memfd_secret": ("0",),
    "ioctl": ("0", str(_TIOCSTI), "@x"),
    "socket": ("40", "1"),  # AF_VSOCK
    "personality": ("0x0040000",),  # ADDR_NO_RANDOMIZE
}
"""Behind the check of privilege the arguments are invalid or harmless: if one is answered, nothing happens."""

_SETTINGS: Final = (
    "kernel/core_pattern kernel/hostname kernel/msgmax kernel/ns_last_pid fs/mqueue/msg_max user/max_mnt_namespaces "
    "net/ipv4/ip_unprivileged_port_start"
).split()
"""Below /proc/sys; the kernel would let root of a user namespace write some of them."""


class Answer(NamedTuple):
    """What came of one operation."""

    error: int
    """An errno; 0 if it was carried out."""
    content: bytes

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode("utf-8", "replace")

    @property
    def names(self) -> Sequence[str]:
        """The content as the names that it lists."""
        return self.text.rstrip("\0").split("\0")


def _call(machine: str, name: str, *values: str) -> Question | None:
    known = _OTHER_CALLS.get(name)
    number = known[machine == "aarch64"] if known else system_call(name, machine)
    return None if number is None else ("call", str(number), *values, *["0"] * (6 - len(values)))


def questions(
    *, machine: str, canaries: Sequence[str], token: str, planted: str, port: int, server: int
) -> Mapping[str, Question]:
    """Return everything that is tried, by name.

    Args:
        machine: `x86_64` or `aarch64`.
        canaries: Files of the host.
        token: In their names.
        planted: In the name of a file inside.
        port: Where somebody listens on the host's loopback.
        server: The number of a process of the host.
    """
    asked: dict[str, Question | None] = {
        "environment": ("read", "/proc/self/environ"),
        "processes": ("processes",),
        "status": ("read", "/proc/self/status"),
        "devices": ("read", "/proc/net/dev"),
        "connect": ("connect", str(port)),
        "numbers": ("names", "/proc"),
        "descriptors": ("names", "/proc/self/fd"),
        "search host": ("search", token),
        "search inside": ("search", planted),
        "command line": ("read", "/proc/cmdline"),
        "mounts": ("read", "/proc/self/mountinfo"),
        "reach server": _call(machine, "kill", str(server), "0"),
        "allowed": _call(machine, "getppid"),
        "trace init": _call(machine, "ptrace", "16", "1"),
        "init name": ("read", "/proc/1/comm"),
        "init environment": ("read", "/proc/1/environ"),
        "init root": ("link", "/proc/1/root"),
        "change nothing": ("change", "/dev/null"),
        "change init": ("change", "/proc/1/mem"),
        "children": ("children", str(CHILDREN)),
    }
    for name in _SETTINGS:
        asked[f"change {name}"] = ("change", f"/proc/sys/{name}")
    for kind in NAMESPACE_KINDS:
        asked[f"namespace {kind}"] = ("link", f"/proc/self/ns/{kind}")
    for path in canaries:
        for route in ("", "/proc/1/root", "/proc/self/root", "/.."):
            asked[f"canary {route}{path}"] = ("read", f"{route}{path}")
    for name, values in _FORBIDDEN.items():
        asked[f"call {name}"] = _call(machine, name, *values)
    asked["wait"] = ("wait",)
    return {name: question for name, question in asked.items() if question is not None}


def limit_questions(limits: Collection[str]) -> Mapping[str, Question]:
    """Return what is tried where these limits of `LIMITED` are to hold; the answers are how much there was."""
    tries = {
        "memory_bytes": ("memory",),
        "disk_bytes": ("fill", "/workspace/fill"),
        "inodes": ("files", "/workspace/many"),
    }
    asked = {name: (*words, str(2 * LIMITED[name])) for name, words in tries.items() if name in limits}
    return {**asked, "wait": ("wait",)}


def arguments(asked: Mapping[str, Question]) -> tuple[str, ...]:
    """Return questions as arguments of the probe."""
    return tuple(word for question in asked.values() for word in question)


def answers(asked: Mapping[str, Question], said: bytes) -> Mapping[str, Answer]:
    """Return the answers by the names of the questions.

    Raises:
        ProviderError: The probe did not answer all of them.
    """
    return dict(zip(asked, _parsed(said, len(asked)), strict=True))


def _parsed(said: bytes, count: int) -> Iterator[Answer]:
    for _ in range(count):
        line, _, said = said.partition(b"\n")
        try:
            error, length = (int(word) for word in line.split())
            if len(said) < length:
                raise ValueError
        except ValueError:
            raise ProviderError(
                "The self-test was not carried out", why="its probe ended too early", fix="Report this as a bug"
            ) from None
        yield Answer(error, said[:length])
        said = said[length:]
