"""A manifest as a client meets it: carried out from the first call on, or refused by whatever needs a sandbox."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interaction.wire_client import WireClient

__all__: list[str] = []


Configured = Callable[[str], Callable[[], WireClient]]


@pytest.fixture
def configured(start: Callable[..., WireClient], project: Path, tmp_path: Path) -> Configured:
    """Write the user's own file; return what starts servers that read it."""

    def configure(text: str) -> Callable[[], WireClient]:
        config = tmp_path / "config" / "mcp-sandbox" / "config.yaml"
        config.parent.mkdir(parents=True)
        config.write_text(text)
        environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        return lambda: start("serve", "--project", str(project), env=environment)

    return configure


def test_what_a_manifest_says_holds_from_the_first_call(start: Callable[..., WireClient], project: Path) -> None:
    (project / "mcp-sandbox.yaml").write_text(
        "limits: {open_files: 234}\nenv: {FROM: manifest, CI: 'no'}\nsandbox: {timeout: 2s}\n"
    )
    server = start("serve", "--project", str(project))
    first = server.exec("ulimit -n; echo $FROM $CI")
    assert first.body.splitlines()[-2:] == ["234", "manifest no"]
    assert "ended=timeout" in server.exec("sleep 30").header
    assert server.exec("echo $FROM", env={"FROM": "call"}).body.strip() == "call"


def test_cfg04_a_manifest_that_a_sandbox_writes_stays_in_there(start: Callable[..., WireClient], project: Path) -> None:
    scope = ("serve", "--project", str(project))
    written = start(*scope).exec(
        "echo 'limits: {pids: 9999}' > mcp-sandbox.yaml; echo x > agent.manifest; cat mcp-sandbox.yaml"
    )
    assert "9999" in written.text
    assert not (project / "mcp-sandbox.yaml").exists()
    assert not start(*scope).exec("true").is_error


def test_a_manifest_that_cannot_be_used_is_told_by_every_call_and_nothing_is_made(
    start: Callable[..., WireClient], project: Path
) -> None:
    (project / "mcp-sandbox.yaml").write_text("limits:\n  pidz: 5\n")
    server = start("serve", "--project", str(project))
    assert len(server.request("tools/list")["result"]["tools"]) > 3
    for answer in (
        server.exec("true"),
        server.call("write_file", file_path="a", content="x"),
        server.call("sandbox_create"),
    ):
        assert answer.is_error
        assert "mcp-sandbox.yaml cannot be used: line 2: limits.pidz" in answer.text
        assert "did you mean `pids`?" in answer.text
        assert str(project) not in answer.text
    assert server.call("sandbox_list").text.startswith("No sandboxes")


def test_what_tools_ask_for_is_within_what_the_operator_allows(configured: Configured) -> None:
    serve = configured("policy: {providers: [local], images: [dev]}\n")
    server = serve()
    assert not server.exec("true").is_error
    refused = server.call("sandbox_create", image="other")
    assert "Image 'other' refused: the policy allows only dev" in refused.text


def test_the_strictest_layer_decides_about_commands(configured: Configured, project: Path) -> None:
    serve = configured("capabilities: {commands: {denied: [dd]}}\n")
    rule = "{rule: git push *, decision: deny, reason: nobody pushes from here, match: [git push origin]}"
    (project / "mcp-sandbox.yaml").write_text(f"capabilities: {{commands: {{allowed: [git, dd], rules: [{rule}]}}}}\n")
    server = serve()
    assert not server.exec("git --version").is_error
    denied = server.exec("echo x | dd of=y")
    assert "says" in denied.text
    assert "config.yaml" in denied.text
    assert "nobody pushes from here" in server.exec("git push origin main").text
    assert "which cannot be done here" in server.exec("python3 -c 1").text


def test_a_rule_that_its_own_example_proves_wrong_is_refused(start: Callable[..., WireClient], project: Path) -> None:
    rule = "{rule: git push, decision: deny, match: [git pull]}"
    (project / "mcp-sandbox.yaml").write_text(f"capabilities: {{commands: {{rules: [{rule}]}}}}\n")
    refused = start("serve", "--project", str(project)).exec("true")
    assert refused.is_error
    assert "capabilities.commands in mcp-sandbox.yaml" in refused.text
    assert "its example 'git pull' is not matched" in refused.text


def test_snap03_a_snapshot_of_a_laxer_time_does_not_bring_back_what_is_denied_now(
    start: Callable[..., WireClient], project: Path
) -> None:
    (project / ".env").write_text("canary-env")
    scope = ("serve", "--project", str(project), "--tools", "full")
    lax = start(*scope)
    assert "canary-env" in lax.exec("echo more >> .env; cat .env").text
    taken = lax.call("snapshot_create").text.split()[0]
    lax.close()
    (project / "mcp-sandbox.yaml").write_text("limits: {pids: 100}\ncapabilities: {filesystem: {denied: [.env]}}\n")
    strict = start(*scope)
    assert "was made before .env was denied" in strict.exec("cat .env").text
    listed = strict.call("sandbox_list").text
    strict.call("sandbox_destroy", sandbox=listed.split()[0])
    assert "canary" not in strict.exec("cat .env; ulimit -u").text
    for answer in (strict.call("snapshot_restore", snapshot=taken), strict.call("sandbox_create", from_snapshot=taken)):
        assert answer.is_error
        assert "was taken before .env was denied" in answer.text
    own = strict.call("snapshot_create").text.split()[0]
    assert not strict.call("snapshot_restore", snapshot=own).is_error
    assert "canary" not in strict.exec("cat .env").text


def test_the_agent_chooses_no_provider_that_the_operator_did_not_name(configured: Configured) -> None:
    serve = configured("sandbox: {provider: local}\n")
    server = serve()
    assert not server.exec("true").is_error
    assert "the policy allows only local" in server.call("sandbox_create", provider="memory").text


def test_cmd05_variables_of_a_project_are_weighed_against_the_users_allow_list(
    configured: Configured, project: Path
) -> None:
    serve = configured("capabilities: {commands: {allowed: [echo], default: deny}}\nenv: {OWN: user}\n")
    server = serve()
    assert server.exec("echo $OWN").body.split()[-1] == "user"
    (project / "mcp-sandbox.yaml").write_text("env: {BASH_ENV: /workspace/evil.sh}\n")
    server = serve()
    assert "the variable BASH_ENV may change what an allowed command does" in server.exec("echo hi").text
    (project / "mcp-sandbox.yaml").write_text("env: {APP_ENV: test}\n")
    server = serve()
    assert server.exec("echo $APP_ENV").body.split()[-1] == "test"


def test_a_list_that_allows_nothing_allows_nothing(start: Callable[..., WireClient], project: Path) -> None:
    (project / "mcp-sandbox.yaml").write_text("capabilities: {commands: {allowed: []}}\n")
    assert (
        "is not among the commands that are allowed (none)" in start("serve", "--project", str(project)).exec("id").text
    )


def test_a_name_that_is_denied_anywhere_is_denied_in_the_workspace(
    start: Callable[..., WireClient], project: Path
) -> None:
    (project / ".env").write_text("secret")
    (project / "other").mkdir()
    (project / "other" / "f").write_text("secret")
    (project / "mcp-sandbox.yaml").write_text(
        'capabilities: {filesystem: {denied: ["/**/.env", "//workspace/other/f"]}}\n'
    )
    assert "secret" not in start("serve", "--project", str(project)).exec("cat .env other/f; ls -A").text
