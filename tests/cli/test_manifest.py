"""`manifest`, `policy`, `trust`, and what the other commands do where there is a manifest."""

import json
from typing import Any

from command_line import ROOT, CommandLine

__all__: list[str] = []

_EXAMPLE = (ROOT / "configs" / "manifests" / "code-reviewer.yaml").read_text("utf-8")


def _write(cli: CommandLine, text: str, name: str = "mcp-sandbox.yaml") -> None:
    (cli.project / name).write_text(text)


def _configure(cli: CommandLine, text: str) -> None:
    """Write the user's own file."""
    path = cli.home / ".config" / "mcp-sandbox" / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)


def _policy(cli: CommandLine, *arguments: str) -> dict[str, Any]:
    return json.loads(cli.run("policy", "explain", "--json", *arguments).stdout)


def test_check_names_every_key_that_is_wrong_and_its_line(cli: CommandLine) -> None:
    _write(cli, "name: x\nsandbox:\n  timout: 5\n")
    done = cli.run("manifest", "check")
    assert (done.returncode, done.stdout) == (
        1, b"line 3: sandbox.timout: there is no such key; did you mean `timeout`?\n",
    )  # fmt: skip
    (problem,) = json.loads(cli.run("manifest", "check", "--json").stdout)["problems"]
    assert (problem["line"], problem["key"]) == (3, "sandbox.timout")


def test_check_says_what_cannot_be_carried_out_here(cli: CommandLine) -> None:
    del cli.variables["MCP_SANDBOX_PROVIDER"]
    _write(cli, _EXAMPLE, "agent.manifest")
    done = cli.run("manifest", "check")
    assert done.returncode == 1
    assert "no provider 'e2b'" in done.stdout.decode()
    local = cli.run("manifest", "check", "--provider", "local").stdout.decode()
    assert "e2b" not in local
    assert "capabilities.network.allowed in agent.manifest: not supported yet by provider 'local'" in local
    assert "network" not in cli.run("manifest", "check", "--provider", "local", "--network", "none").stdout.decode()


def test_check_takes_any_file_and_is_content_with_a_good_one(cli: CommandLine) -> None:
    good = cli.project.parent / "good.yaml"
    good.write_text("name: good\nlimits: {pids: 100}\n")
    assert "can be carried out" in cli.say("manifest", "check", str(good), "--provider", "local")
    assert cli.run("manifest", "check").returncode == 2
    assert cli.run("manifest", "check", "nosuch.yaml").returncode == 2


def test_explain_says_what_each_key_means_and_what_becomes_of_it(cli: CommandLine) -> None:
    _configure(cli, "limits: {open_files: 1000}\n")
    _write(cli, "limits: {pids: 5000, open_files: 500}\nsandbox: {provider: docker}\n")
    told = json.loads(cli.say("manifest", "explain", "--json", "--provider", "local"))
    by_key = {each["key"]: each for each in told["keys"]}
    assert by_key["limits.open_files"]["becomes"] == "holds"
    assert by_key["limits.pids"]["becomes"].startswith("refused: 5000 is more than 512")
    assert by_key["sandbox.provider"]["becomes"] == "does not hold: the command line says so"
    assert by_key["limits.pids"]["meaning"].startswith("Processes and threads")


def test_render_prints_what_holds_as_a_manifest(cli: CommandLine) -> None:
    _configure(cli, "limits: {open_files: 1000}\nenv: {A: user}\n")
    _write(cli, "name: x\nlimits: {open_files: 500}\nenv: {A: project, B: '2'}\n")
    whole = json.loads(cli.say("manifest", "render", "--json", "--provider", "local"))
    assert (whole["limits"], whole["env"]) == ({"open_files": 500}, {"A": "user", "B": "2"})
    rendered = cli.project.parent / "rendered.yaml"
    rendered.write_text(cli.say("manifest", "render", "--provider", "local"))
    (cli.home / ".config" / "mcp-sandbox" / "config.yaml").unlink()
    assert json.loads(cli.say("manifest", "render", "--json", str(rendered), "--provider", "local")) == whole


def test_policy_explain_says_what_holds_and_who_said_it(cli: CommandLine) -> None:
    _configure(cli, "sandbox: {resources: {memory: 1GiB}}\nallowed_env: [PUBLIC]\n")
    _write(cli, "sandbox: {resources: {memory: 512MiB, cpu: 2core}}\nallowed_env: [PUBLIC, API_KEY]\n")
    told = _policy(cli, "--provider", "local")
    assert told["holds"]["sandbox.resources.memory"] == {"value": 512 << 20, "said_by": ["mcp-sandbox.yaml"]}
    assert told["holds"]["allowed_env"]["value"] == ["PUBLIC"]
    assert told["refused"] == []
    assert any("API_KEY" in each for each in told["told"])
    text = cli.say("policy", "explain", "--provider", "local")
    assert "~/.config/mcp-sandbox/config.yaml" in text
    assert "which may only narrow" in text


def test_cfg01_a_project_that_widens_is_refused_and_the_key_is_named(machine: CommandLine) -> None:
    own = CommandLine(machine.home, machine.project, {"XDG_CONFIG_HOME": str(machine.project.parent / "config")})
    path = machine.project.parent / "config" / "mcp-sandbox" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("sandbox: {timeout: 10min}\nallowed_env: []\npolicy: {providers: [local]}\n")
    _write(own, "sandbox: {timeout: 1h}\n")
    done = own.run("exec", "--", "true")
    assert done.returncode == 2
    assert b"sandbox.timeout in mcp-sandbox.yaml refused: 3600 s is more than 600 s" in done.stderr
    assert own.run("policy", "explain").returncode == 1
    assert own.sandboxes() == [], "nothing was made"
    _write(own, "sandbox: {provider: docker}\n")
    assert (
        b"sandbox.provider in mcp-sandbox.yaml refused: docker is not among what"
        in own.run("exec", "--", "true").stderr
    )
    _write(own, "policy: {providers: [docker]}\n")
    assert b"policy.providers: a project may not say this" in own.run("exec", "--", "true").stderr


def test_cr08_variables_pass_that_user_and_project_list_and_no_others(machine: CommandLine) -> None:
    config = machine.project.parent / "config"
    (config / "mcp-sandbox").mkdir(parents=True)
    (config / "mcp-sandbox" / "config.yaml").write_text("allowed_env: [PUBLIC, UNUSED]\nenv: {FROM_USER: u}\n")
    variables = {"XDG_CONFIG_HOME": str(config), "PUBLIC": "p", "UNUSED": "n", "API_KEY": "canary"}
    own = CommandLine(machine.home, machine.project, variables)
    _write(own, "allowed_env: [PUBLIC, API_KEY]\nenv: {OWN: o, FROM_USER: x, LITERAL: '${API_KEY}'}\n")
    done = own.run("exec", "--", "env")
    shown = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
    assert (shown["PUBLIC"], shown["OWN"], shown["FROM_USER"]) == ("p", "o", "u")
    assert shown["LITERAL"] == "${API_KEY}"
    assert not {"API_KEY", "UNUSED"} & set(shown)
    assert b"API_KEY of mcp-sandbox.yaml is not passed on" in done.stderr
    assert b"canary" not in done.stdout + done.stderr
    kept = [path.read_bytes() for path in machine.home.rglob("*.json")]
    assert not any(b"canary" in text or b'"PUBLIC"' in text for text in kept), "values are in no file"
    own.say("rm", "--own")


def test_limits_workspace_and_provider_of_a_manifest_are_carried_out(machine: CommandLine) -> None:
    (machine.project / "here").write_text("x")
    _write(machine, "sandbox: {provider: local, timeout: 1s}\nlimits: {open_files: 222}\nworkspace: empty\n")
    assert machine.say("exec", "--", "sh", "-c", "ulimit -n; ls -A") == "222\n"
    assert machine.run("exec", "--", "sleep", "30").returncode == 124
    assert machine.sandboxes()[0]["provider"] == "local"
    again = machine.run("exec", "--workspace", "overlay", "--", "true")
    assert (again.returncode, b"has the workspace mode 'empty'" in again.stderr) == (0, False)
    machine.say("rm", "--own")


def test_more_than_the_usual_takes_the_users_yes_which_ends_with_the_file(machine: CommandLine) -> None:
    own = CommandLine(machine.home, machine.project, {"XDG_CONFIG_HOME": str(machine.project.parent / "config")})
    _write(own, "limits: {pids: 600}\n")
    refused = own.run("exec", "--", "true")
    assert (refused.returncode, b"mcp-sandbox trust" in refused.stderr) == (2, True)
    assert "limits.pids: 600" in own.say("trust")
    assert own.say("exec", "--", "true") == ""
    assert own.sandboxes()[0]["limits"]["pids"] == 600
    _write(own, "limits: {pids: 601}\n")
    assert own.run("exec", "--", "true").returncode == 2, "a changed file is a stranger again"
    _write(own, "limits: {pids: 600}\n")
    assert own.run("exec", "--", "true").returncode == 0
    assert own.say("trust", "--undo") == "Taken back.\n"
    assert own.run("exec", "--", "true").returncode == 2
    own.say("rm", "--own")


def test_what_is_not_carried_out_is_refused_by_key_and_lists_still_work(machine: CommandLine) -> None:
    for text, key in (
        ("services: {web: run}", "services.web"),
        ("capabilities: {network: {allowed: [api.test]}}", "capabilities.network.allowed"),
        ("capabilities: {commands: {remove: [dd]}}", "capabilities.commands.remove"),
        ("capabilities: {commands: {mode: strict}}", "capabilities.commands.mode"),
        ("ports: [80]", "ports"),
        ("sandbox: {options: {docker: {privileged: 'yes'}}}", "sandbox.options.docker.privileged"),
        ("sandbox: {provider: e2b}", "sandbox.provider"),
    ):
        _write(machine, f"{text}\n")
        done = machine.run("exec", "--", "true")
        assert done.returncode == 2, text
        assert key.encode() in done.stderr, done.stderr
        assert machine.sandboxes() == []


def test_a_fallback_is_taken_and_told(machine: CommandLine) -> None:
    _write(machine, "sandbox: {provider: e2b, fallback: [nosuch, local]}\n")
    done = machine.run("exec", "--", "true")
    assert done.returncode == 0, done.stderr
    assert b"provider 'e2b' cannot be used" in done.stderr
    assert b"New sandboxes run on 'local' (isolation: namespace) instead" in done.stderr
    assert machine.sandboxes()[0]["provider"] == "local"
    machine.say("rm", "--own")


def test_cfg03_the_project_cannot_say_where_files_and_state_are(machine: CommandLine) -> None:
    evil = machine.project / "evil"
    (evil / "mcp-sandbox").mkdir(parents=True)
    (evil / "mcp-sandbox" / "config.yaml").write_text("sandbox: {provider: e2b}\n")
    (machine.project / ".env").write_text(
        f"XDG_CONFIG_HOME={evil}\nMCP_SANDBOX_HOME={evil}\nMCP_SANDBOX_PROVIDER=e2b\n"
    )
    machine.say("exec", "--", "true")
    assert machine.sandboxes()[0]["provider"] == "local"
    assert not (evil / "registry").exists()
    machine.say("rm", "--own")


def test_a_workspace_that_is_another_one_is_refused_at_the_command_line(machine: CommandLine) -> None:
    machine.say("exec", "--", "true")
    done = machine.run("exec", "--workspace", "empty", "--", "true")
    assert (done.returncode, b"has the workspace mode 'overlay'" in done.stderr) == (2, True)
    machine.say("rm", "--own")


def test_fs11_what_a_manifest_denies_is_in_no_sandbox_old_or_new(machine: CommandLine) -> None:
    (machine.project / "k.pem").write_text("canary-pem")
    look = ("exec", "--", "sh", "-c", "cat k.pem; ls -A")
    _write(machine, "name: x\n")
    assert "canary-pem" in machine.say(*look), "nothing is denied yet"
    _write(machine, "capabilities: {filesystem: {denied: ['**/*.pem', ~/.ssh/**, /etc/**]}}\n")
    old = machine.run(*look)
    assert (old.returncode, old.stdout) == (2, b"")
    assert b"was made before **/*.pem was denied" in old.stderr
    named = machine.sandboxes()[0]["id"]
    assert machine.run("exec", "--sandbox", named, "--", "true").returncode == 2
    machine.say("rm", "--own")
    new = machine.run(*look)
    assert (new.stdout, b"canary" in new.stderr) == (b"mcp-sandbox.yaml\n", False)
    machine.say("rm", "--own")


def test_denials_that_cannot_be_carried_out_are_refused_by_name(machine: CommandLine) -> None:
    for text, key in (
        ("denied: [/usr/bin/**]", "capabilities.filesystem.denied"),
        ("allowed: [/workspace/src/**]", "capabilities.filesystem.allowed"),
        ("denied: [../x]", "capabilities.filesystem.denied[0]"),
    ):
        _write(machine, f"capabilities: {{filesystem: {{{text}}}}}\n")
        done = machine.run("exec", "--", "true")
        assert (done.returncode, key.encode() in done.stderr) == (2, True), done.stderr
    assert machine.sandboxes() == []
