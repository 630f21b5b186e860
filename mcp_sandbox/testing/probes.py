"""Python programs that try, from inside, what must be refused. They print one line per attempt."""

from collections.abc import Mapping
from typing import Final

__all__ = ["DANGEROUS_CAPABILITIES", "DEVICES", "SOCKETS", "SYSCALLS", "TERMINALS"]

DANGEROUS_CAPABILITIES: Final[Mapping[str, int]] = {
    "DAC_READ_SEARCH": 2,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYS_MODULE": 16,
    "SYS_RAWIO": 17,
    "SYS_PTRACE": 19,
    "SYS_PACCT": 20,
    "SYS_ADMIN": 21,
    "SYS_BOOT": 22,
    "SYS_TIME": 25,
    "MKNOD": 27,
    "AUDIT_CONTROL": 30,
    "MAC_OVERRIDE": 32,
    "MAC_ADMIN": 33,
    "SYSLOG": 34,
    "PERFMON": 38,
    "BPF": 39,
    "CHECKPOINT_RESTORE": 40,
}
"""Bits of `capabilities(7)` that open a way to the host."""

SYSCALLS: Final = r"""
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
x86 = platform.machine() == "x86_64"
EFAULT_ARGUMENT = ctypes.c_void_p(0)
attr = (ctypes.c_ulong * 16)()
path = ctypes.create_string_buffer(b"/workspace")
handle = ctypes.create_string_buffer(b"\x08\0\0\0\1\0\0\0" + b"\0" * 24)
NEW = {"user": 0x10000000, "mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000, "uts": 0x4000000, "ipc": 0x8000000}
calls = {f"unshare_{name}": ((272, 97), flag) for name, flag in NEW.items()}
calls |= {
    "mount": ((165, 40), path, path, ctypes.c_char_p(b"tmpfs"), 0, EFAULT_ARGUMENT),
    "umount2": ((166, 39), ctypes.c_char_p(b"/proc"), 0),
    "pivot_root": ((155, 41), path, path),
    "setns": ((308, 268), os.open("/proc/self/ns/mnt", os.O_RDONLY), 0),
    "fsopen": ((430, 430), ctypes.c_char_p(b"tmpfs"), 0),
    "open_tree": ((428, 428), -100, path, 1),
    "move_mount": ((429, 429), -100, path, -100, path, 0),
    "mount_setattr": ((442, 442), -100, path, 0, attr, 32),
    "ptrace_attach_1": ((101, 117), 16, 1, 0, 0),
    "process_vm_readv_1": ((310, 270), 1, attr, 1, attr, 1, 0),
    "bpf": ((321, 280), 0, attr, 128),
    "perf_event_open": ((298, 241), attr, 0, -1, -1, 0),
    "add_key": ((248, 217), ctypes.c_char_p(b"user"), ctypes.c_char_p(b"k"), ctypes.c_char_p(b"v"), 1, -3),
    "request_key": ((249, 218), ctypes.c_char_p(b"user"), ctypes.c_char_p(b"k"), 0, -3),
    "keyctl": ((250, 219), 0, -3, 1),
    "io_uring_setup": ((425, 425), 4, attr),
    "io_uring_register": ((427, 427), -1, 0, 0, 0),
    "userfaultfd": ((323, 282), 0),
    "open_by_handle_at": ((304, 265), -100, handle, 0),
    "kexec_load": ((246, 104), 0, 0, EFAULT_ARGUMENT, 0),
    "init_module": ((175, 105), EFAULT_ARGUMENT, 0, path),
    "finit_module": ((313, 273), -1, path, 0),
    "delete_module": ((176, 106), ctypes.c_char_p(b"no-such-module"), 2048),
    "swapon": ((167, 224), ctypes.c_char_p(b"/no/such/file"), 0),
    "reboot": ((169, 142), 0, 0, 0, EFAULT_ARGUMENT),
    "acct": ((163, 89), ctypes.c_char_p(b"/no/such/file")),
    "fanotify_init": ((300, 262), 0, 0),
    "quotactl": ((179, 60), 0x80000100, EFAULT_ARGUMENT, 0, EFAULT_ARGUMENT),
    "syslog": ((103, 116), 3, attr, 1),
    "clone_user": ((56, 220), 0x10000000 | 17, 0, 0, 0, 0),
    "memfd_secret": ((447, 447), 0),
}
if x86:
    calls |= {"iopl": ((172, 172), 3), "ioperm": ((173, 173), 0, 1, 1), "modify_ldt": ((154, 154), 0, attr, 16)}
for name, (numbers, *arguments) in calls.items():
    ctypes.set_errno(0)
    result = libc.syscall(numbers[0 if x86 else 1], *arguments)
    error = ctypes.get_errno()
    if result == 0 and name == "clone_user" and os.getpid() != parent:
        os._exit(0)
    refused = result == -1 and error in (1, 13, 38)  # EPERM, EACCES, ENOSYS
    print(name, "refused" if refused else f"answered {result} {os.strerror(error)}", flush=True)
""".replace("libc = ", "parent = os.getpid()\nlibc = ", 1)
"""Numbers are those of x86_64 and aarch64. Behind the check of privilege the arguments are invalid: nothing happens."""

SOCKETS: Final = r"""
import socket
families = {
    "AF_VSOCK": 40, "AF_PACKET": 17, "AF_ALG": 38, "AF_BLUETOOTH": 31, "AF_CAN": 29, "AF_TIPC": 30,
    "AF_RDS": 21, "AF_KEY": 15, "AF_NFC": 39, "AF_XDP": 44, "AF_KCM": 41, "AF_SMC": 43,
}
for name, family in families.items():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind)
            print("OPENED", name, kind)
        except OSError:
            pass
for family in (socket.AF_INET, socket.AF_INET6):
    try:
        socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        print("OPENED raw", family)
    except OSError:
        pass
"""

DEVICES: Final = r"""
import os, stat
nodes = {
    "disk": (stat.S_IFBLK, 8, 0), "vda": (stat.S_IFBLK, 254, 0), "mem": (stat.S_IFCHR, 1, 1),
    "kmsg": (stat.S_IFCHR, 1, 11), "fuse": (stat.S_IFCHR, 10, 229), "kvm": (stat.S_IFCHR, 10, 232),
}
for name, (kind, major, minor) in nodes.items():
    for place in ("/workspace", "/tmp", "/dev", "/dev/shm"):
        path = f"{place}/node-{name}"
        try:
            os.mknod(path, kind | 0o666, os.makedev(major, minor))
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            print("OPENED", path)
        except OSError:
            pass
real = "/dev/mem /dev/kmsg /dev/kvm /dev/fuse /dev/net/tun /dev/sda /dev/vda /proc/kcore /proc/kmsg"
for path in real.split():
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if path.startswith("/dev/") or os.read(descriptor, 1):  # an empty file may hide one of /proc
            print("OPENED", path)
    except OSError:
        pass
"""

TERMINALS: Final = r"""
import fcntl, os, termios
places = ["/dev/tty", "/dev/console", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"]
opened = []
for path in places:
    try:
        opened.append((path, os.open(path, os.O_RDWR | os.O_NOCTTY)))
    except OSError as error:
        print(path, error)
try:
    opened.append(("a terminal of its own", os.openpty()[1]))
except OSError as error:
    print("openpty", error)
for path, descriptor in opened:
    for request, argument in ((termios.TIOCSTI, b"x"), (0x541C, b"\x03")):  # TIOCLINUX: paste
        try:
            fcntl.ioctl(descriptor, request, argument)
            print("INJECTED", path, hex(request))
        except OSError as error:
            print(path, error)
"""
