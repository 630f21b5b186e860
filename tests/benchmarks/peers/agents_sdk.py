"""The sandbox client of the OpenAI Agents SDK that needs no container (`UnixLocal`), in a process of its own."""

import json
import os
import subprocess
from pathlib import Path

from tests.benchmarks.peers.installing import PeersHome
from tests.benchmarks.peers.target import Operation, Target, timed_ms

__all__ = ["AgentsSdk"]

_DRIVER = Path(__file__).with_name("agents_driver.py")


class AgentsSdk(Target):
    """Measures itself: the process that drives it answers with milliseconds."""

    name = "openai-agents UnixLocal, as a library"
    isolation = "none"
    does = frozenset(Operation)

    def __init__(self, home: PeersHome, scratch: Path) -> None:
        self._python = home.python
        self._place = scratch / "agents"
        self._place.mkdir()
        self._process: subprocess.Popen[str] | None = None

    def do(self, operation: Operation) -> float:
        if operation is Operation.START:
            return self._start()
        return self._ask(operation.name)

    def _start(self) -> float:
        self.close()
        env = {**os.environ, "TMPDIR": str(self._place), "OPENAI_AGENTS_DISABLE_TRACING": "1"}
        env.pop("PYTHONPATH", None)
        with timed_ms() as taken:
            self._process = subprocess.Popen(
                [str(self._python), str(_DRIVER), str(self._place)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=self._place,
            )  # fmt: skip
            self._answer()
        self._ask("BEGIN")
        return taken[0]

    def _ask(self, word: str) -> float:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait()}")
        return float(json.loads(line)["ms"])

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate()
