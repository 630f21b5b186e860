"""Whose files say something, and which are refused because of what they are."""

import os
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.manifest.discovery import find_files, has_files
from mcp_sandbox.manifest.layers import read_layers
from mcp_sandbox.manifest.problems import ManifestError
from mcp_sandbox.manifest.trust import forget_trust, is_trusted, trust, trusted_file

__all__: list[str] = []


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """An administrator's file, a user's and a project; only the last exists."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user = tmp_path / "config" / "mcp-sandbox"
    user.mkdir(parents=True)
    return tmp_path / "admin.yaml", user / "config.yaml", project


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize("name", ["mcp-sandbox.yaml", "agent.manifest"])
def test_layers_come_from_the_top_down(places: tuple[Path, Path, Path], name: str) -> None:
    admin, user, project = places
    _write(user, "limits: {pids: 100}")
    _write(project / name, "limits: {pids: 50}")
    options: dict[str, object] = {"limits.pids": 80}
    layers = read_layers(str(project), options, admin=str(admin), user=user)
    assert [(layer.name, layer.values["limits.pids"]) for layer in layers] == [
        ("user", 100), ("command line", 80), ("project", 50),
    ]  # fmt: skip
    assert not layers[-1].trusted


def test_nothing_is_read_where_nothing_is(places: tuple[Path, Path, Path]) -> None:
    admin, user, project = places
    assert find_files(str(project), admin=str(admin), user=user) == []


def test_two_manifests_are_one_too_many(places: tuple[Path, Path, Path]) -> None:
    admin, user, project = places
    _write(project / "mcp-sandbox.yaml", "name: a")
    _write(project / "agent.manifest", "name: b")
    with pytest.raises(ConfigError, match="there are two"):
        find_files(str(project), admin=str(admin), user=user)


def test_a_misspelt_name_is_told_and_not_passed_over(places: tuple[Path, Path, Path]) -> None:
    admin, user, project = places
    _write(project / "mcp-sandbox.yml", "name: a")
    with pytest.raises(ConfigError, match=r"called mcp-sandbox\.yaml"):
        find_files(str(project), admin=str(admin), user=user)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_project_cannot_lead_the_reader_elsewhere(places: tuple[Path, Path, Path], kind: str, tmp_path: Path) -> None:
    admin, user, project = places
    path = project / "mcp-sandbox.yaml"
    secret = tmp_path / "id_rsa"
    _write(secret, "PRIVATE KEY: sesame")
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(ConfigError, match=r"mcp-sandbox\.yaml is not used") as caught:
        find_files(str(project), admin=str(admin), user=user)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_users_file_that_others_may_write_is_refused(places: tuple[Path, Path, Path], mode: int) -> None:
    admin, user, project = places
    _write(user, "limits: {pids: 100}", mode)
    with pytest.raises(ConfigError, match="others may write it"):
        find_files(str(project), admin=str(admin), user=user)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_strangers_file_is_refused(places: tuple[Path, Path, Path]) -> None:
    admin, user, project = places
    _write(admin, "limits: {pids: 100}")
    os.chown(admin, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        find_files(str(project), admin=str(admin), user=user)


@pytest.mark.parametrize("text", ["", "pids: 3", "limits: {pids: x}", "a: &b c", "x: !!python/object:os.system y"])
def test_cfg05_a_users_file_that_cannot_be_used_is_no_empty_one(places: tuple[Path, Path, Path], text: str) -> None:
    admin, user, project = places
    _write(user, text)
    with pytest.raises(ManifestError, match=r"config\.yaml cannot be used"):
        read_layers(str(project), {}, admin=str(admin), user=user)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("secrets: {A: secret://env/A}", "secrets.A"),
        ("env: {X: 'secret://env/CANARY_ENV'}", "env.X"),
        ("policy: {providers: [local]}", "policy.providers"),
        ("files: {a: {from: ../../etc/shadow}}", "files.a"),
        ("files: {a: {from: /etc/shadow}}", "files.a"),
        ("environment: {image: ../rootfs}", "environment.image"),
        ("environment: {wheels: /root}", "environment.wheels"),
        ("sandbox: {provider: memory}", "sandbox.provider"),
        ("capabilities: {filesystem: {allowed: ['/etc/**']}}", "capabilities.filesystem.allowed"),
        ("capabilities: {filesystem: {allowed: ['/workspace/../../x']}}", "capabilities.filesystem.allowed[0]"),
    ],
)
def test_cfg06_what_no_project_may_say_is_refused_by_key_and_line(
    places: tuple[Path, Path, Path], text: str, key: str
) -> None:
    admin, user, project = places
    _write(project / "mcp-sandbox.yaml", f"name: x\n{text}")
    with pytest.raises(ManifestError) as caught:
        read_layers(str(project), {}, admin=str(admin), user=user)
    (problem,) = caught.value.problems
    assert (problem.key, problem.line) == (key, 2)


def test_a_yes_is_for_one_file_as_it_is(places: tuple[Path, Path, Path]) -> None:
    _, _, project = places
    trust(str(project), "mcp-sandbox.yaml", "d1")
    assert is_trusted(str(project), "mcp-sandbox.yaml", "d1")
    assert not is_trusted(str(project), "mcp-sandbox.yaml", "d2")
    assert not is_trusted(str(project / "other"), "mcp-sandbox.yaml", "d1")
    assert trusted_file().stat().st_mode & 0o777 == 0o600
    assert forget_trust(str(project), ["mcp-sandbox.yaml"])
    assert not is_trusted(str(project), "mcp-sandbox.yaml", "d1")
    assert not forget_trust(str(project), ["mcp-sandbox.yaml"])


@pytest.mark.parametrize("text", ["{", '{"schema": 2, "trusted": {}}', '{"schema": 1}', "[]"])
def test_a_damaged_list_of_yeses_is_no_yes(places: tuple[Path, Path, Path], text: str) -> None:
    _, _, project = places
    _write(trusted_file(), text, 0o600)
    with pytest.raises(ConfigError, match=r"trusted\.json cannot be used"):
        is_trusted(str(project), "mcp-sandbox.yaml", "d1")


def test_a_list_of_yeses_that_others_may_write_is_no_yes(places: tuple[Path, Path, Path]) -> None:
    _, _, project = places
    trust(str(project), "mcp-sandbox.yaml", "d1")
    trusted_file().chmod(0o666)
    with pytest.raises(ConfigError, match="others may write it"):
        is_trusted(str(project), "mcp-sandbox.yaml", "d1")


def test_a_configuration_that_leads_nowhere_is_refused(places: tuple[Path, Path, Path]) -> None:
    admin, user, project = places
    user.symlink_to("/nonexistent/dotfiles")
    assert has_files(str(project))
    with pytest.raises(ConfigError, match="a link to nothing"):
        find_files(str(project), admin=str(admin), user=user)


def test_a_configuration_that_may_not_even_be_looked_at_is_not_taken_for_none(
    places: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, user, project = places
    if os.geteuid() == 0:  # root may look everywhere, but nothing is below a name that is too long
        monkeypatch.setenv("XDG_CONFIG_HOME", "/" + "x" * 300)
    else:
        user.parent.chmod(0)
    try:
        assert has_files(str(project))
        with pytest.raises(ConfigError, match="cannot be used"):
            find_files(str(project), admin="/nonexistent")
    finally:
        user.parent.chmod(0o755)


@pytest.mark.parametrize(
    "text",
    [
        f"sandbox: {{resources: {{memory: {'9' * 400}}}}}", f"sandbox: {{resources: {{disk: {'9' * 400}TB}}}}",
        f"limits: {{inodes: {'9' * 400}}}", f"sandbox: {{timeout: {'9' * 400}}}", f"sandbox: {{idle: {'9' * 400}s}}",
        f"sandbox: {{resources: {{cpu: {'9' * 400}}}}}", "sandbox: {fallback: [memory]}", "sandbox: {provider: memory}",
    ],
)  # fmt: skip
def test_what_no_project_can_mean_is_named_by_key(places: tuple[Path, Path, Path], text: str) -> None:
    admin, user, project = places
    _write(project / "mcp-sandbox.yaml", text)
    with pytest.raises(ManifestError, match=r"line 1: (sandbox|limits)\."):
        read_layers(str(project), {}, admin=str(admin), user=user)
