"""The command line as a process of its own, with a state directory of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

__all__ = ["ROOT", "CommandLine"]

ROOT = Path(__file__).parents[2]


@dataclass
class CommandLine:
    """Runs `mcp-sandbox` as users do."""

    home: Path
    project: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        """Its whole environment."""
        modules = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        paths = {"PATH": os.environ["PATH"], "PYTHONPATH": modules, "HOME": str(self.home)}
        return {**paths, "MCP_SANDBOX_HOME": str(self.home), **self.variables}

    def start(self, *arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "mcp_sandbox", *arguments],
            cwd=self.project,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end."""
        with self.start(*arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE) as process:
            try:
                out, err = process.communicate(stdin, timeout=30)
            except BaseException:
                process.kill()
                raise
        assert b"Traceback" not in err, err.decode()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def say(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Return what a command that works says."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def sandboxes(self) -> list[dict[str, Any]]:
        """Return the sandboxes of this project, as `ls` lists them."""
        listed = json.loads(self.say("ls", "--json"))
        return [one for one in listed if one["project"] == str(self.project.resolve())]
