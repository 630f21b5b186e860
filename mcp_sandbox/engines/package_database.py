"""What dpkg knows of the host's packages: without it `apt-get install` inside would think that there are none."""

import os
import shutil
import stat
from pathlib import Path
from typing import Final

__all__ = ["copy_package_database"]

_DPKG: Final = Path("/var/lib/dpkg")
_DIRECTORIES: Final = ("info", "alternatives", "triggers", "updates", "parts")
_PASSED_OVER: Final = ("lock", "lock-frontend", "Lock", "status-old", "diversions-old", "statoverride-old")


def copy_package_database(root: Path) -> None:
    """Copy it into a root file system, but for what the host does not let everybody read. Blocks."""
    if not _DPKG.is_dir():
        return
    for directory in ("", *_DIRECTORIES):
        target = root / _DPKG.relative_to("/") / directory
        target.mkdir(parents=True)
        target.chmod(0o755)
        if (_DPKG / directory).is_dir():
            _copy_files(_DPKG / directory, target)


def _copy_files(source: Path, target: Path) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            if entry.name in _PASSED_OVER or not stat.S_ISREG(found.st_mode) or not found.st_mode & stat.S_IROTH:
                continue
            shutil.copyfile(entry.path, target / entry.name)
            (target / entry.name).chmod(0o755 if found.st_mode & stat.S_IXUSR else 0o644)
