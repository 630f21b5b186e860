"""Programs that run inside: one changes a tree in every way there is, one says all that a tree shows."""

from typing import Final

__all__ = ["CENSUS", "CHANGE", "ROOTS"]

ROOTS: Final = ("/workspace", "/root", "/usr/local/games")
"""A place in each volume of a layer."""

CHANGE: Final = r"""
import ctypes, json, os, shutil, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def fill(path, text):
    with open(path, "ab") as file:
        file.write(text.encode())
def replace(path, text):
    with open(path, "wb") as file:
        file.write(text.encode())
def bind(path):
    os.chdir(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.basename(path)[:100])
def exchange(path, other):
    libc.renameat2(-100, os.fsencode(path), -100, os.fsencode(other), 2)
def mark(path, name):
    for space in ("user.overlay.", "trusted.overlay.", "user."):
        for value in (b"y", b"x", b"/" + os.fsencode(name)):
            try:
                os.setxattr(path, space + name, value, follow_symlinks=False)
            except OSError:
                pass
def deep(path, count):
    os.chdir(os.path.dirname(path))
    for _ in range(int(count)):
        os.mkdir("d")
        os.chdir("d")
do = {
    "fill": fill, "replace": replace, "bind": bind, "exchange": exchange, "mark": mark, "deep": deep,
    "mkdir": os.makedirs, "remove": os.unlink, "rmtree": shutil.rmtree, "rename": os.rename, "link": os.link,
    "symlink": lambda path, to: os.symlink(to, path), "fifo": os.mkfifo,
    "chmod": lambda path, mode: os.chmod(path, int(mode, 8)),
    "chown": lambda path, owner: os.lchown(path, int(owner), int(owner)),
    "truncate": lambda path, size: os.truncate(path, int(size)),
    "whiteout": lambda path: os.mknod(path, 0o020666, 0), "touch": lambda path: os.utime(path, (1, 1)),
}
for name, *arguments in json.loads(sys.argv[1]):
    try:
        do[name](*arguments)
    except OSError:
        pass
"""

CENSUS: Final = r"""
import hashlib, json, os, stat, sys
found = {}
def look(path):
    s = os.lstat(path)
    kind = "dlpscfb"[[stat.S_ISDIR, stat.S_ISLNK, stat.S_ISFIFO, stat.S_ISSOCK, stat.S_ISCHR, stat.S_ISREG,
                      stat.S_ISBLK].index(next(f for f in (stat.S_ISDIR, stat.S_ISLNK, stat.S_ISFIFO, stat.S_ISSOCK,
                                                           stat.S_ISCHR, stat.S_ISREG, stat.S_ISBLK) if f(s.st_mode)))]
    content = s.st_rdev
    if kind == "f":
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
    elif kind == "l":
        content = os.readlink(path)
    marks = {}
    if kind in "fd":
        marks = {name: os.getxattr(path, name).hex() for name in sorted(os.listxattr(path))}
    found[path] = [kind, stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, content, marks, s.st_mtime_ns]
    if kind == "d":
        for name in os.listdir(path):
            look(path + "/" + name)
sys.setrecursionlimit(10000)
for root in sys.argv[1:]:
    if os.path.lexists(root):
        look(root)
print(json.dumps(found))
"""
