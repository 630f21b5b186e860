"""Rules for commands, and the questions that they lead to, over stdio with the SDK's own client."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, ElicitResult, TextContent

from tests.interaction.wire_client import WireClient

__all__: list[str] = []

ONLY_STATUS = "capabilities: {commands: {default: deny, allowed: [git status, git init]}}\n"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_cmd04_a_person_decides_about_what_a_rule_wants_asked(
    warm_state: Callable[[Path], Path], tmp_path: Path, project: Path, mode: Literal["auto", "legacy"]
) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        assert context is not None
        asked.append(params.message)
        return ElicitResult(
            action="accept", content={"decision": "Run it once" if len(asked) == 1 else "Do not run it"}
        )

    (project / "mcp-sandbox.yaml").write_text("capabilities: {commands: {ask: [git push]}}\n")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mcp_sandbox", "serve", "--project", str(project)],
        env={"MCP_SANDBOX_HOME": str(warm_state(tmp_path / "state"))},
    )

    async def say(command: str) -> str:
        result = await client.call_tool("exec", {"command": command})
        assert isinstance(result, CallToolResult)
        assert isinstance(result.content[0], TextContent)
        return result.content[0].text

    async with Client(server, mode=mode, elicitation_callback=answer) as client:
        assert "main" in await say("git init -q -b main; git branch --show-current")
        assert "failed to push" in await say("git push origin main # \r\x1b[2K")
        assert "who said no" in await say("git push origin main")
    assert r"  | git push origin main # \r\e[2K" in asked[0]
    assert len(asked) == 2


@pytest.mark.parametrize(
    "line",
    [
        "git status; id", "git status\nid", 'git -c core.fsmonitor="id" status', "git status > /workspace/x",
        "GIT_SSH_COMMAND=id git status",
    ],
)  # fmt: skip
def test_cmd05_an_allow_rule_does_not_leak(start: Callable[..., WireClient], project: Path, line: str) -> None:
    (project / "mcp-sandbox.yaml").write_text(ONLY_STATUS)
    server = start("serve", "--project", str(project))
    refused = server.exec(line)
    assert refused.is_error
    assert "uid=" not in refused.text
    assert not server.exec("git init -q && git status").is_error
    assert server.exec("git status", env={"GIT_SSH_COMMAND": "id"}).is_error


def test_cmd01_a_denied_command_is_denied_in_a_background_job_and_with_input_too(
    start: Callable[..., WireClient], project: Path
) -> None:
    (project / "mcp-sandbox.yaml").write_text("capabilities: {commands: {denied: [dd]}}\n")
    server = start("serve", "--project", str(project))
    assert "rule `dd`" in server.exec("nohup dd if=a", run_in_background=True).text
    assert "standard input" in server.exec("sh", stdin="dd if=a").text
    assert server.call("job", action="list").text.startswith("No ")


def test_cmd03_a_client_that_cannot_ask_gets_a_denial_that_says_what_to_change(
    start: Callable[..., WireClient], project: Path
) -> None:
    (project / "mcp-sandbox.yaml").write_text("capabilities: {commands: {ask: [git push]}}\n")
    server = start("serve", "--project", str(project))
    refused = server.exec("touch ran; git push origin main")
    assert refused.is_error
    assert "cannot be done here" in refused.text
    assert "have the user change the rule in mcp-sandbox.yaml" in refused.text
    assert "ran" not in server.exec("ls").body.split()


def test_the_rules_of_the_readme_decide_as_it_says(start: Callable[..., WireClient], project: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    example = readme.partition("**Rules for commands**")[2].partition("```yaml\n")[2].partition("```")[0]
    (project / "mcp-sandbox.yaml").write_text(example)
    server = start("serve", "--project", str(project))
    assert server.exec("python3 -c 'print(6 * 7)'").body.split()[-1] == "42"
    assert "rule `dd`" in server.exec("dd").text
    assert "CI does it" in server.exec("npm publish").text
    for line in ("git push", "make", "git status > x", "$X"):
        assert "has the user asked" in server.exec(line).text
