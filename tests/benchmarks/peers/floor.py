"""The same work without any product: a process, a file, `tar`."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.peers.target import FILES, TEXT, Operation, Target, timed_ms

__all__ = ["Floor"]


class Floor(Target):
    """Python's own means, on the host."""

    name = "floor: plain `bash -c`, files, `tar`"
    isolation = "none"
    does = frozenset(Operation)

    def __init__(self, scratch: Path) -> None:
        self._place = scratch / "floor"
        self._place.mkdir()
        self._tree, self._tar = self._place / "tree", self._place / "tree.tar"
        self._tree.mkdir()
        for number in range(FILES):
            (self._tree / f"f{number}").write_text(TEXT)

    def do(self, operation: Operation) -> float:
        with timed_ms() as taken:
            if operation is Operation.START:
                subprocess.run([sys.executable, "-c", "pass"], check=True)
            elif operation is Operation.CREATE:
                (self._place / "workspace").mkdir()
                self._true()
                (self._place / "workspace").rmdir()
            elif operation is Operation.EXEC:
                self._true()
            elif operation is Operation.FILE:
                (self._place / "file").write_text(TEXT * 1024)
                assert len((self._place / "file").read_text()) == 1 << 20
            elif operation is Operation.SNAPSHOT:
                subprocess.run(["tar", "-cf", str(self._tar), "-C", str(self._tree), "."], check=True)
            else:
                shutil.rmtree(self._tree)
                self._tree.mkdir()
                subprocess.run(["tar", "-xf", str(self._tar), "-C", str(self._tree)], check=True)
                self._true()
        return taken[0]

    def _true(self) -> None:
        subprocess.run(["bash", "-c", "true"], check=True, capture_output=True)

    def close(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
