"""The system calls a command may make, as a classic BPF program built from data.

Numbers are those of `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64). Calls newer than `NEWEST` answer
ENOSYS, so that programs fall back to what is known here.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["build_answers", "build_filter", "build_small_filter", "system_call"]

# name: (x86_64, aarch64); None where the architecture never had it
_NUMBERS: Final[Mapping[str, tuple[int | None, int | None]]] = {
    "_sysctl": (156, None), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280),
    "capset": (126, 91), "chown": (92, None), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "clone": (56, 220), "clone3": (435, 435), "create_module": (174, None), "delete_module": (176, 106),
    "fanotify_init": (300, 262), "fchown": (93, 55), "fchownat": (260, 54), "fgetxattr": (193, 10),
    "finit_module": (313, 273), "flistxattr": (196, 13), "fremovexattr": (199, 16),
    "fsconfig": (431, 431), "fsetxattr": (190, 7), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "get_kernel_syms": (177, None), "get_mempolicy": (239, 236), "init_module": (175, 105), "io_setup": (206, 0),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29),
    "ioperm": (173, None), "iopl": (172, None), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "lchown": (94, None),
    "listmount": (458, 458), "lookup_dcookie": (212, 18), "lsm_get_self_attr": (459, 459),
    "lsm_set_self_attr": (460, 460), "map_shadow_stack": (453, 453), "mbind": (237, 235), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "mknod": (133, None), "mknodat": (259, 33), "modify_ldt": (154, None),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239),
    "name_to_handle_at": (303, 264), "nfsservctl": (180, 42), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "personality": (135, 92), "pivot_root": (155, 41),
    "prlimit64": (302, 261), "process_madvise": (440, 440), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "set_mempolicy": (238, 237),
    "setfsgid": (123, 152), "setfsuid": (122, 151), "setgid": (106, 144), "setgroups": (116, 159), "setns": (308, 268),
    "setpriority": (141, 140), "setregid": (114, 143), "setresgid": (119, 149), "setresuid": (117, 147),
    "setreuid": (113, 145), "setrlimit": (160, 164), "settimeofday": (164, 170), "setuid": (105, 146),
    "socket": (41, 198), "statmount": (457, 457), "swapoff": (168, 225), "swapon": (167, 224), "sysfs": (139, None),
    "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "uselib": (134, None), "userfaultfd": (323, 282),
    "ustat": (136, None), "vhangup": (153, 58),
}  # fmt: skip
NEWEST: Final = 469

_DENIED: Final = (
    "_sysctl acct add_key adjtimex bpf clock_adjtime clock_settime create_module delete_module fanotify_init "
    "finit_module fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy init_module ioperm iopl kcmp "
    "kexec_file_load kexec_load keyctl listmount lookup_dcookie lsm_get_self_attr lsm_set_self_attr mbind memfd_secret "
    "migrate_pages modify_ldt mount mount_setattr move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at "
    "open_tree open_tree_attr perf_event_open pivot_root process_madvise process_vm_readv process_vm_writev "
    "quotactl quotactl_fd reboot request_key set_mempolicy setns settimeofday statmount swapoff swapon sysfs "
    "syslog umount2 uselib userfaultfd ustat vhangup"
).split()
_ABSENT: Final = "clone3 io_setup io_uring_enter io_uring_register io_uring_setup map_shadow_stack".split()
"""`io_setup`: the whole machine shares one small count of requests (`fs.aio-max-nr`), and one program can use it up."""
_ABOUT_INIT: Final = {
    "sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0, "setpriority": 1,
    "ioprio_set": 1,
}  # fmt: skip
"""Which argument names a process: programs that run as init's own user could take the processor away from it."""
_OWNERSHIP: Final = (
    "capset chown fchown fchownat lchown setfsgid setfsuid setgid setgroups setregid setresgid setresuid setreuid "
    "setuid"
).split()

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT, _PRETEND = _ERRNO | 1, _ERRNO | 38, _ERRNO | 97, _ERRNO | 0
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _JUMP, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x05, 0x54
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data
_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_NEW_NAMESPACES: Final = 0x7E020000
_NEW_USER_NAMESPACE: Final = 0x10000000
_TERMINAL_INJECTION: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_ADDRESS_FAMILIES: Final = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK
_PERSONALITIES: Final = (0, 8, 0x20000, 0xFFFFFFFF)
_EVERYBODYS: Final = {"setpriority": 2, "ioprio_set": 3}
"""What their first argument is where all processes of a user are meant, and init is one of them."""
_CORE_LIMIT: Final = 4  # RLIMIT_CORE; `plan.py` says why it stays what it is
_INIT: Final = 1
_CHARACTER_DEVICE, _BLOCK_DEVICE, _TYPE_MASK = 0o020000, 0o060000, 0o170000


def system_call(name: str, machine: str) -> int | None:
    """Return the number of a system call, `None` where the architecture never had it."""
    return _NUMBERS[name][_ARCHITECTURES[machine][0]]


class _Step(NamedTuple):
    code: int
    value: int
    if_true: int = 0
    if_false: int = 0


_Code = list[_Step]


def _give(verdict: int) -> _Code:
    return [_Step(_RETURN, verdict)]


def _argument(index: int) -> _Step:
    return _Step(_LOAD, _ARGUMENTS_AT + 8 * index)  # the low half; all but pointers are 32 bits wide


def _one_of(load: _Code, values: tuple[int, ...], matched: int, otherwise: int) -> _Code:
    count = len(values)
    tests = [_Step(_EQUAL, value, count - i, 0) for i, value in enumerate(values)]
    return [*load, *tests, _Step(_RETURN, otherwise), _Step(_RETURN, matched)]


def _namespaces(refused: int) -> _Code:
    return [
        _argument(0),
        _Step(_ANY_BIT, refused, 0, 1),
        _Step(_RETURN, _EPERM),
        _Step(_RETURN, _ALLOW),
    ]


def _limits() -> _Code:
    """Return the rule for `prlimit64`: not for init, and the limit of core files is read, but not set."""
    upper_half = _Step(_LOAD, _ARGUMENTS_AT + 8 * 2 + 4)
    return [
        _argument(0),
        _Step(_EQUAL, _INIT, 0, 1),
        _Step(_RETURN, _EPERM),
        _argument(1),
        _Step(_EQUAL, _CORE_LIMIT, 0, 5),
        _argument(2),
        _Step(_EQUAL, 0, 0, 2),
        upper_half,
        _Step(_EQUAL, 0, 1, 0),
        _Step(_RETURN, _PRETEND),
        _Step(_RETURN, _ALLOW),
    ]


def _rules(column: int, *, one_id: bool) -> dict[int, _Code]:
    pretend = _PRETEND if one_id else _EPERM
    named: dict[str, _Code] = {name: _give(_EPERM) for name in _DENIED}
    named |= {name: _give(_ENOSYS) for name in _ABSENT}
    if one_id:
        named |= {name: _give(_PRETEND) for name in _OWNERSHIP}
    named["unshare"] = named["clone"] = _namespaces(_NEW_NAMESPACES)
    named["ioctl"] = _one_of([_argument(1)], _TERMINAL_INJECTION, _EPERM, _ALLOW)
    named["socket"] = _one_of([_argument(0)], _ADDRESS_FAMILIES, _ALLOW, _EAFNOSUPPORT)
    named["prlimit64"] = _limits()
    named["setrlimit"] = _one_of([_argument(0)], (_CORE_LIMIT,), _PRETEND, _ALLOW)
    for name, index in _ABOUT_INIT.items():
        named[name] = _one_of([_argument(index)], (_INIT,), _EPERM, _ALLOW)
    for name, everybody in _EVERYBODYS.items():
        of_all = [_argument(0), _Step(_EQUAL, everybody, 0, 1), _Step(_RETURN, _EPERM)]
        named[name] = [*of_all, *named[name]]
    named["personality"] = _one_of([_argument(0)], _PERSONALITIES, _ALLOW, _EPERM)
    for name, index in (("mknod", 1), ("mknodat", 2)):
        kind = [_argument(index), _Step(_AND, _TYPE_MASK)]
        named[name] = _one_of(kind, (_CHARACTER_DEVICE, _BLOCK_DEVICE), pretend, _ALLOW)
    numbers = {name: _NUMBERS[name][column] for name in named}
    return {number: named[name] for name, number in numbers.items() if number is not None}


def _decide(points: list[tuple[int, _Code]]) -> _Code:
    """Return a binary search over ranges; each begins at its number and reaches to the next."""
    if len(points) == 1:
        return points[0][1]
    middle = len(points) // 2
    lower, upper = _decide(points[:middle]), _decide(points[middle:])
    pivot = points[middle][0]
    if len(lower) <= 255:  # a conditional jump reaches no further
        return [_Step(_AT_LEAST, pivot, len(lower), 0), *lower, *upper]
    return [_Step(_AT_LEAST, pivot, 0, 1), _Step(_JUMP, len(lower)), *lower, *upper]


def build_answers(machine: str, answers: Mapping[str, int]) -> bytes:
    """Return a program that lets everything pass but these calls, which answer with an errno; 0 pretends success."""
    column, _ = _ARCHITECTURES[machine]
    numbers = {_NUMBERS[name][column]: errno for name, errno in answers.items()}
    return _program(machine, {number: _give(_ERRNO | errno) for number, errno in numbers.items() if number is not None})


def build_small_filter(machine: str) -> bytes:
    """Return a program for commands of a kernel of their own: that kernel's limits end at a new user namespace."""
    column, _ = _ARCHITECTURES[machine]
    named = {"unshare": _namespaces(_NEW_USER_NAMESPACE), "clone": _namespaces(_NEW_USER_NAMESPACE)}
    named |= {"clone3": _give(_ENOSYS)}  # its flags lie where no filter looks
    numbers = {_NUMBERS[name][column]: code for name, code in named.items()}
    return _program(machine, {number: code for number, code in numbers.items() if number is not None})


def build_filter(machine: str, *, one_id: bool) -> bytes:
    """Return the program for `machine` as an array of `struct sock_filter`.

    Args:
        machine: `x86_64` or `aarch64`.
        one_id: Whether the sandbox has a single user id. Then what changes owners or identities pretends to succeed,
            as package managers need; where a range of ids exists, these calls work for real.
    """
    column, _ = _ARCHITECTURES[machine]
    return _program(machine, _rules(column, one_id=one_id))


def _program(machine: str, rules: Mapping[int, _Code]) -> bytes:
    _, architecture = _ARCHITECTURES[machine]
    points: list[tuple[int, _Code]] = [(0, _give(_ALLOW))]
    for number, code in sorted(rules.items()):
        if points[-1][0] == number:
            points.pop()
        points += [(number, code), (number + 1, _give(_ALLOW))]
    points.append((NEWEST + 1, _give(_ENOSYS)))
    program = [
        _Step(_LOAD, _ARCHITECTURE_AT),
        _Step(_EQUAL, architecture, 1, 0),
        _Step(_RETURN, _ENOSYS),
        _Step(_LOAD, _NUMBER_AT),
        *_decide(points),
    ]
    return b"".join(struct.pack("<HBBI", step.code, step.if_true, step.if_false, step.value) for step in program)
