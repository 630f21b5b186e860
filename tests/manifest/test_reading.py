"""What a manifest may say, what it means, and how a hostile one is refused."""

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mcp_sandbox.manifest.keys import flat, nested
from mcp_sandbox.manifest.problems import ManifestError
from mcp_sandbox.manifest.reading import parse_manifest
from mcp_sandbox.manifest.yaml_tree import MOST_BYTES

__all__: list[str] = []

_EXAMPLE = Path(__file__).parents[2] / "configs" / "manifests" / "code-reviewer.yaml"


def values(text: str) -> dict[str, object]:
    """Return what a manifest says, by key."""
    return flat(parse_manifest(text.encode(), "mcp-sandbox.yaml").manifest)


def problems(text: str | bytes) -> list[tuple[int, str, str]]:
    """Return what is wrong with a manifest."""
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(ManifestError) as caught:
        parse_manifest(data, "mcp-sandbox.yaml")
    return [(each.line, each.key, each.what) for each in caught.value.problems]


def test_the_founding_example_is_valid_as_it_stands() -> None:
    assert values(_EXAMPLE.read_text("utf-8")) == {
        "name": "code-reviewer",
        "version": "1.0",
        "description": "automatic code review agent",
        "environment.runtime": "python3.11",
        "environment.dependencies": ("openai", "anthropic"),
        "sandbox.provider": "e2b",
        "sandbox.resources.cpu": 2.0,
        "sandbox.resources.memory": 4_000_000_000,
        "capabilities.filesystem.allowed": ("/workspace/**",),
        "capabilities.filesystem.denied": ("~/.ssh/**", "/etc/**"),
        "capabilities.network.allowed": ("api.github.com", "api.openai.com"),
        "capabilities.network.denied": ("all",),
        "capabilities.commands.allowed": ("git", "npm", "python", "pytest"),
        "capabilities.commands.denied": ("rm -rf /", "dd"),
    }


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("version: 1.10", "version", "1.10"),
        ("env: {PORT: 8080, COUNTRY: no, EMPTY: ''}", "env.COUNTRY", "no"),
        ("env: {PORT: 8080}", "env.PORT", "8080"),
        ("sandbox: {resources: {memory: 512MiB}}", "sandbox.resources.memory", 512 << 20),
        ("sandbox: {resources: {disk: 10GB}}", "sandbox.resources.disk", 10**10),
        ("sandbox: {resources: {cpu: 1.5}}", "sandbox.resources.cpu", 1.5),
        ("sandbox: {timeout: 10min}", "sandbox.timeout", 600.0),
        ("sandbox: {timeout: 300}", "sandbox.timeout", 300.0),
        ("sandbox: {idle: 2h}", "sandbox.idle", 7200.0),
        ("workspace: empty", "workspace.mode", "empty"),
        ("workspace: {mode: copy}", "workspace.mode", "copy"),
        ("limits: {best_effort: true}", "limits.best_effort", True),
        ("sandbox: {options: {docker: {runtime: runsc}}}", "sandbox.options.docker.runtime", "runsc"),
        ("files: {a/b.txt: hello}", "files.a/b.txt", "hello"),
        ("files: {a.txt: {from: b.txt, mode: 0755}}", "files.a.txt", {"from": "b.txt", "mode": "0755"}),
        ("setup: [make, {run: npm ci, inputs: [package.json]}]", "setup",
         ("make", {"run": "npm ci", "inputs": ("package.json",)})),
    ],
)  # fmt: skip
def test_values_mean_what_they_look_like(text: str, key: str, value: object) -> None:
    assert values(text)[key] == value


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("nam: x", 1, "nam", "did you mean `name`?"),
        ("name: x\nsandbox:\n  timout: 5", 3, "sandbox.timout", "did you mean `timeout`?"),
        ("sandbox:\n  memory: 4GB", 2, "sandbox.memory", "did you mean `sandbox.resources.memory`?"),
        ("\nlimits:\n  pids: 3", 3, "limits.pids", "less than 8"),
        ("sandbox: {resources: {memory: 4 XB}}", 1, "sandbox.resources.memory", "512MiB, 4GB or 10GiB"),
        ("sandbox: {resources: {memory: 1KB}}", 1, "sandbox.resources.memory", "less than 1 MiB"),
        ("sandbox: {timeout: soon}", 1, "sandbox.timeout", "300, 90s, 10min or 2h"),
        ("sandbox: {idle: 5s}", 1, "sandbox.idle", "less than 60"),
        ("sandbox: {resources: {cpu: many}}", 1, "sandbox.resources.cpu", "2core or 1.5"),
        ("workspace: overly", 1, "workspace.mode", "'overlay', 'copy', 'mount' or 'empty'"),
        ("mounts: [/]", 1, "mounts", "nothing of the machine comes in but the project"),
        ("setup:\n  - run: a\n  - rn: b", 3, "setup[1]", "`run` is missing"),
        ("files:\n  a: {content: x, from: y}", 2, "files.a", "one of `content`, `from` and `git`"),
        ("services: 5", 1, "services", "a group of keys"),
        ("ports: 80", 1, "ports", "a list is expected"),
        ("env: {A B: c}", 1, "env.A B", "no name of a variable"),
        ("capabilities:\n  network:\n    allowed:\n    - {hots: x}", 4,
         "capabilities.network.allowed[0].hots", "did you mean `host`?"),
        ("name: [a]", 1, "name", "text is expected, not a list"),
        ('name: "a\\e[31m"', 1, "name", "cannot be seen"),
        ("", 0, "", "it is empty"),
        ("- a", 1, "", "a group of keys"),
        ("a: 1\nb: ]", 2, "", "it is no YAML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_key_line_and_the_nearest_that_is_right(
    text: str, line: int, key: str, words: str
) -> None:
    found = problems(text)
    assert any(each[0] == line and each[1] == key and words in each[2] for each in found), found


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_the_lines() -> None:
    found = problems("limits: {pids: 1}\nnam: x\nsandbox: {timeout: x}")
    assert [(line, key) for line, key, _ in found] == [(1, "limits.pids"), (2, "nam"), (3, "sandbox.timeout")]


_HOSTILE: dict[str, str | bytes] = {
    "alias": "a: &x [1]\nname: *x",
    "bomb": "a0: &a0 [x,x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n},*a{n}]\n" for n in range(20)),
    "anchored key": "&a name: x",
    "python tag": "name: !!python/object/apply:os.system ['touch /tmp/owned']",
    "own tag": "name: !include /etc/shadow",
    "duplicate": "name: a\nname: b",
    "merge": "<<: {name: a}",
    "deep list": "[" * 100_000,
    "deep mapping": "{a: " * 50_000,
    "deep dashes": "- " * 50_000,
    "deep keys": "".join("  " * n + "a:\n" for n in range(400)),
    "question marks": "? " * 5_000,
    "huge": b"name: " + b"x" * (MOST_BYTES + 1),
    "many keys": "".join(f"k{n}: 1\n" for n in range(20_000)),
    "many entries": "env:\n" + "".join(f"  K-{n}: 1\n" for n in range(15_000)),
    "long line": "name: " + "x" * 200_000,
    "quotes": "name: '" + "''" * 100_000,
    "NUL": b"name: \x00",
    "escape": b"name: \x1b[2J",
    "not UTF-8": b"name: \xff\xfe",
    "UTF-16": "name: x".encode("utf-16"),
    "documents": "name: a\n---\nname: b",
    "directive": "%TAG ! tag:evil,2000:\n---\nname: !x a",
    "complex key": "? [a, b]\n: c",
}  # fmt: skip


@pytest.mark.parametrize("text", _HOSTILE.values(), ids=_HOSTILE)
def test_cfg05_hostile_yaml_is_refused_in_bounded_time_and_memory(text: str | bytes, tmp_path: Path) -> None:
    began = time.perf_counter()
    assert problems(text)
    took_s = time.perf_counter() - began
    tracemalloc.start()
    try:
        assert problems(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert took_s < 5
    assert peak < 64 << 20
    assert not Path("/tmp/owned").exists()


def test_what_is_told_of_a_hostile_key_can_be_shown_to_a_person() -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(b'"a\\e]0;x\\a\\u202Eb": 1', "mcp-sandbox.yaml")
    assert str(caught.value).isprintable()


def test_a_group_without_keys_says_nothing() -> None:
    assert values("name: x\nenvironment:\n  # image: dev\nlimits: ~\nenv: null\n") == {"name": "x"}


def test_flat_and_nested_are_each_others_inverse() -> None:
    text = """
    sandbox: {provider: docker, options: {docker: {runtime: runsc}}, resources: {memory: 1GiB}}
    env: {A: b}
    files: {a.b/c.d: {from: x}}
    services: {web: {command: run, ready: {port: 80}}}
    """
    whole: Any = nested(values(text))
    assert whole["sandbox"]["options"] == {"docker": {"runtime": "runsc"}}
    assert whole["files"] == {"a.b/c.d": {"from": "x"}}
    assert whole["services"]["web"]["ready"] == {"port": 80}
