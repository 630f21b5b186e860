"""Runs a command on a machine that lacks something: `python restricted.py STEP... -- COMMAND...`.

What is taken away is taken from this process alone, in namespaces of its own, and really: the kernel refuses it.
"""

import ctypes
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

__all__ = ["main"]

NEW_NAMESPACE, NEW_USER = 0x00020000, 0x10000000
BIND, REMOUNT, READ_ONLY, PRIVATE, RECURSIVE = 0x1000, 0x20, 0x1, 1 << 18, 0x4000
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
CLONE, UNSHARE, CLONE3 = {"x86_64": (56, 272, 435), "aarch64": (220, 97, 435)}[platform.machine()]
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026

libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() for word in (source, target, kind)]
    _check(libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {kind} {target}")


def _separate() -> None:
    """Get mount and user namespaces of our own; ids stay what they are."""
    uid, gid, us = os.getuid(), os.getgid(), os.getpid()
    ids = [(uid, 1), (gid, 1)] if uid else [(0, 2**32 - 1)] * 2
    mapper = (
        f"import sys; sys.stdin.read(); open('/proc/{us}/setgroups', 'w').write('{'allow' if uid == 0 else 'deny'}'); "
        + "; ".join(
            f"open('/proc/{us}/{kind}_map', 'w').write('{first} {first} {count}')"
            for kind, (first, count) in zip(("uid", "gid"), ids, strict=True)
        )
    )
    with subprocess.Popen([sys.executable, "-c", mapper], stdin=subprocess.PIPE) as child:
        _check(libc.unshare(NEW_NAMESPACE | NEW_USER), "unshare")
    if child.returncode:
        raise OSError("no map of ids")
    _mount("none", "/", "none", PRIVATE | RECURSIVE)


def _refuse_namespaces() -> None:
    """Refuse what the default seccomp profile of container engines refuses."""
    steps = [
        (LOAD, 0, 0, 0), (EQUAL, 2, 0, CLONE), (EQUAL, 1, 0, UNSHARE), (EQUAL, 3, 4, CLONE3), (LOAD, 0, 0, 16),
        (ANY_BIT, 0, 2, NEW_USER), (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ENOSYS), (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    code = b"".join(struct.pack("<HBBI", kind, yes, no, value) for kind, yes, no, value in steps)
    program = ctypes.create_string_buffer(code)
    header = struct.pack("HL", len(steps), ctypes.addressof(program))
    _check(libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(libc.prctl(SET_SECCOMP, FILTER, header, 0, 0), "seccomp")


def main(arguments: list[str]) -> None:
    """Carry out the steps and become the command."""
    end = arguments.index("--")
    _separate()
    for step in arguments[:end]:
        name, _, rest = step.partition(":")
        if name == "mask":
            _mount("/dev/null", rest, "none", BIND)
        elif name == "read-only":
            _mount(rest, rest, "none", BIND)
            _mount("none", rest, "none", BIND | REMOUNT | READ_ONLY)
        elif name == "tmpfs":
            size, _, place = rest.partition(":")
            _mount("none", place, "tmpfs", 0, f"size={size},mode=700")
        elif name == "overlay":
            _mount("none", rest, "tmpfs", 0)
            for part in ("lower", "upper", "work"):
                Path(rest, part).mkdir()
            _mount(
                "none", rest, "overlay", 0,
                f"lowerdir={rest}/lower,upperdir={rest}/upper,workdir={rest}/work,userxattr",
            )  # fmt: skip
        elif name == "sysctl":
            key, _, value = rest.partition("=")
            Path("/proc/sys", key.replace(".", "/")).write_text(value)
        elif name == "refuse-namespaces":
            _refuse_namespaces()
        else:
            raise SystemExit(f"what is {step!r}?")
    os.execv(arguments[end + 1], arguments[end + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
