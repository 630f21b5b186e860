"""Two renames that Python lacks: exchange two names in one step, and take a name only if nothing has it."""

import ctypes
import errno
import os
from functools import cache
from typing import Final

__all__ = ["exchange", "rename_new"]

_NOREPLACE: Final = 1
_EXCHANGE: Final = 2
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def exchange(source: str, source_dir: int, target: str, target_dir: int) -> bool:
    """Let two entries trade places in one step, whatever they are; `False` where the file system cannot.

    Raises:
        OSError: One of them is not there, or the file system refuses.
    """
    return _rename(source, source_dir, target, target_dir, _EXCHANGE)


def rename_new(source: str, source_dir: int, target: str, target_dir: int) -> None:
    """Rename an entry to a name that nothing has.

    Raises:
        FileExistsError: Something has it.
    """
    if _rename(source, source_dir, target, target_dir, _NOREPLACE):
        return
    # A link is made only where nothing is, too; it holds for files and symbolic links, and nothing else comes here.
    os.link(source, target, src_dir_fd=source_dir, dst_dir_fd=target_dir, follow_symlinks=False)
    os.unlink(source, dir_fd=source_dir)


def _rename(source: str, source_dir: int, target: str, target_dir: int, flags: int) -> bool:
    function = _renameat2()
    if function is None:
        return False
    if function(source_dir, os.fsencode(source), target_dir, os.fsencode(target), ctypes.c_uint(flags)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), target)


@cache
def _renameat2() -> "ctypes._NamedFuncPointer | None":  # pyright: ignore[reportPrivateUsage]
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
