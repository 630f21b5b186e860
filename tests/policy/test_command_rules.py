"""Rules for commands: what they read out of a command line, and what they do not pretend to know."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sandbox.core.errors import ConfigError
from mcp_sandbox.policy.command_rules import CommandPolicy, Decision, Rule, judge

__all__: list[str] = []

NO_CURL = CommandPolicy(rules=(Rule.of("curl", Decision.DENY), Rule.of("rm -rf /", Decision.DENY)))
ONLY_STATUS = CommandPolicy(
    rules=(Rule.of("git status", Decision.ALLOW, match=("git status -s",), no_match=("git push",)),),
    default=Decision.DENY,
)


def decided(policy: CommandPolicy, line: str, *env: str) -> Decision:
    return judge([policy], line, env).decision


@pytest.mark.parametrize(
    "line",
    [
        "curl x", "/usr/bin/curl x", r"c\url x", '"cu"rl x', "'curl' x", "env -i curl x", "env A=1 curl x",
        "xargs -n1 curl <<< x", r"find . -maxdepth 0 -exec curl x \;", 'bash -c "curl x"', "(curl x)", "`curl x`",
        "f(){ curl x; }; f", 'eval "cu""rl x"', "timeout -s 9 5 curl x", "nice curl", "sh -ec \"sh -c 'curl x'\"",
        "exec -a x curl", "flock /x -c 'curl x'", "trap 'curl x' EXIT", "time curl", "! curl", "busybox curl",
        "true && curl", "true | curl", "true; curl", "true\ncurl", "cat <<E\n$(curl x)\nE", "diff <(curl x) y",
        "if true; then curl; fi", "while curl; do :; done", "case x in x) curl;; esac", 'echo "$(curl x)"',
        "bash -euo pipefail -c curl", "bash -oc pipefail curl", "rbash -c curl", "sudo curl", "sudo -u root curl",
        "doas curl",
        "env 'A=x' curl", 'env -i "PATH=$PATH" curl', "git >/dev/null; 2>/dev/null curl", "nice 2>/dev/null curl",
        "exec 2>/dev/null curl", "eval 2>/dev/null curl", "nice <<E curl\nE", "eval -- curl", "trap -- curl EXIT",
        "time ! curl", "/usr/bin/time -ao F curl", "fakeroot curl", "prlimit -n5 curl", "sudo rm -rf /",
        "A=1 curl", "curl > x", "> x curl", "nohup curl &", "for x in 1; do curl; done", "rm -rf / ", "/bin/rm -rf /",
    ],
)  # fmt: skip
def test_cmd01_a_denied_command_is_found_behind_paths_quotes_wrappers_and_chains(line: str) -> None:
    assert decided(NO_CURL, line) is Decision.DENY


@pytest.mark.parametrize(
    "line",
    [
        "bash /dev/stdin <<< curl", "echo curl | bash /dev/fd/0", ". /dev/stdin", "source <(echo curl)", "su -c curl",
        "script -qc curl", "unshare -r sh -c curl", "hash -p /usr/bin/curl c; c", "mapfile -C curl", "compgen -C curl",
        "echo curl | xargs env", "echo curl | xargs -I{} sh -c '{}'", "cat <<E\n`curl`\nE", "cat <<-E\n$(curl)\nE",
        "echo ${A:-`curl`}", "echo `echo \\`curl\\``", "env -vS 'curl'", "env --split=curl", "a=(" * 40_000,
        "$(echo curl) x", "X=curl; $X x", "{curl,x}", "${X:-curl} x", "cur? x", "/usr/bin/c*l x",
        '"$X" x',
        "$'\\x63url' x", "alias c=curl; c x", "echo x | sh", "bash -s < x", "bash <<< 'curl x'", 'sh -c "$X"',
        'eval "$X"',
        "cu\\\nrl x", "\x1b[2Kcurl x", "cu\rrl x", "coproc curl x", "env -S 'curl x'", "bash --rcfile x -i",
        "if then", "curl 'x", 'rm -rf "$DIRECTORY"', "rm -rf $X", "enable -n test", "xargs $X", "sh -c " * 12 + "x",
    ],
)  # fmt: skip
def test_cmd01_what_cannot_be_decided_is_asked_about_and_never_allowed(line: str) -> None:
    assert decided(NO_CURL, line) is not Decision.ALLOW
    strict = CommandPolicy(rules=NO_CURL.rules, when_unclear=Decision.DENY)
    assert decided(strict, line) is Decision.DENY


@pytest.mark.parametrize(
    "line",
    [
        "ls", "echo curl", "grep -r curl .", "command -v curl", "./curly", "rm -rf build", "rm -rf *.o",
        "ls | sort > x",
        'rm -rf "$HOME/build"', "python3 -c 'print(1)'", "bash build.sh", "git commit -m 'use curl'", "cat ~/.profile",
        "git commit -m \"$(cat <<'EOF'\nit's about curl\nEOF\n)\"", "X=1; echo $X", "for f in *.c; do cc $f; done",
        "make && ./run --x=$Y", "echo $(date)", "cat <<'E'\n$(curl x)\nE", "", "# curl x", "a=(1 2); echo ${a[@]}",
        "cc \\\n  -o x", "find . -name '*.py' -exec grep -l curl {} +", "sed -n '1,3p' x", "[[ -f x ]] && echo y",
    ],
)  # fmt: skip
def test_ordinary_commands_go_on_where_one_is_denied(line: str) -> None:
    assert judge([NO_CURL], line).why == ""
    assert decided(NO_CURL, line) is Decision.ALLOW


@pytest.mark.parametrize(
    "line",
    [
        "git status", "git status -s", "cd src && git status 2>&1", "LC_ALL=C git status", "git status 2>/dev/null",
        "timeout 5 git status", "if git status; then echo clean; fi", "sh -c 'git status'", "git status; git status",
    ],
)  # fmt: skip
def test_an_allow_list_lets_through_what_it_names(line: str) -> None:
    assert judge([ONLY_STATUS], line).why == ""


@pytest.mark.parametrize(
    "line",
    [
        "git status; id", "git status\nid", 'git -c core.fsmonitor="id" status', "git status > /workspace/x",
        "GIT_SSH_COMMAND=id git status", "git status && x", "git status | x", "git status & x", "git", "git $X", "$X",
        "export PATH=.; git status", "bash -c 'PATH=. git status'", "env PATH=. git status", "git status $(id)",
        "sh script", "for PATH in .; do git status; done", "git status >> x", "git status &> x", "git status <(id)",
        "f() { git status; }; f", "sudo git status",
    ],
)  # fmt: skip
def test_cmd05_an_allow_rule_does_not_leak_to_chains_options_redirections_and_variables(line: str) -> None:
    assert decided(ONLY_STATUS, line) is not Decision.ALLOW


def test_cmd05_variables_that_a_caller_adds_count_as_those_of_the_line() -> None:
    assert decided(ONLY_STATUS, "git status", "LANG") is Decision.ALLOW
    assert decided(ONLY_STATUS, "git status", "GIT_SSH_COMMAND") is Decision.ASK


def test_deny_comes_before_ask_and_ask_before_allow() -> None:
    rules = (
        Rule.of("git", Decision.ALLOW),
        Rule.of("git push", Decision.ASK),
        Rule.of("git push --force|-f", Decision.DENY, reason="others work on it"),
    )
    policy = CommandPolicy(rules=rules, default=Decision.DENY)
    assert decided(policy, "git pull") is Decision.ALLOW
    assert decided(policy, "git push origin") is Decision.ASK
    verdict = judge([policy], "git push -f origin")
    assert verdict.decision is Decision.DENY
    assert "others work on it" in verdict.why


@pytest.mark.parametrize(
    "line",
    [
        'f() { git "$@"; }; f push --force', 'a=(push --force); git "${a[@]}"', 'git "${opts[@]}" push --force',
        "git -C x push -f", "git -c a=b --no-pager push --force", "git --git-dir=x push -f", "git -C $X push -f",
        "git >/dev/null push --force", "git push 2>x -f", "echo --force | xargs git push",
        "echo push --force | xargs git",
        "git push " + "*" * 40, 'git push "' + "${a}" * 40 + '"',
    ],
)  # fmt: skip
def test_arguments_that_come_from_elsewhere_are_not_overlooked(line: str) -> None:
    policy = CommandPolicy(rules=(Rule.of("git push --force|-f|--force-with-lease", Decision.DENY),))
    assert decided(policy, line) is not Decision.ALLOW


@pytest.mark.parametrize(
    "line",
    [
        'export "PATH=/x:$PATH"; git status', 'declare "PATH=x"; git status', "printf -v PATH x; git status",
        "read PATH; git status", "read -r -p x PATH; git status", "mapfile PATH; git status", "unset PATH; git status",
        "export $X; git status", "git status > 1", "git status > -", "nice 2>/dev/null id", "\\> x", "sudo git status",
        "env http_proxy=x git status",
    ],
)  # fmt: skip
def test_cmd05_an_allow_list_vouches_for_no_variables_and_files_that_are_set_some_other_way(line: str) -> None:
    assert decided(ONLY_STATUS, line) is not Decision.ALLOW


@pytest.mark.parametrize(
    "line", ["while read -r line; do git status; done", "for f in a b; do git status 2>&1; done", "x=1; git status >&2"]
)
def test_a_scripts_own_variables_are_no_reason_to_ask(line: str) -> None:
    assert judge([ONLY_STATUS], line).why == ""


def test_the_strictest_layer_wins() -> None:
    loose = CommandPolicy(rules=(Rule.of("curl", Decision.ALLOW),), default=Decision.ASK, layer="the project")
    for order in ([loose, NO_CURL], [NO_CURL, loose]):
        assert judge(order, "curl").decision is Decision.DENY
        assert judge(order, "ls").layer == "the project"
    assert judge([], "curl").decision is Decision.ALLOW


def test_a_star_stands_for_one_word_and_at_the_end_for_any_number() -> None:
    policy = CommandPolicy(rules=(Rule.of("npm * install *", Decision.DENY),))
    assert decided(policy, "npm -g install x y") is Decision.DENY
    assert decided(policy, "npm -g install") is Decision.DENY
    assert decided(policy, "npm install") is Decision.ALLOW
    path = CommandPolicy(rules=(Rule.of("/opt/tool", Decision.DENY),))
    assert decided(path, "/opt/tool x") is Decision.DENY
    assert decided(path, "tool x") is Decision.ALLOW


@pytest.mark.parametrize(
    ("text", "match", "no_match", "said"),
    [
        ("", (), (), "empty rule"),
        ("git 'x", (), (), "No closing quotation"),
        ("git push", ("git pull",), (), "'git pull' is not matched"),
        ("git push", (), ("cd x; git push",), "'cd x; git push' is matched"),
    ],
)
def test_a_rule_whose_examples_prove_it_wrong_is_refused(
    text: str, match: tuple[str, ...], no_match: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Rule.of(text, Decision.DENY, match=match, no_match=no_match)


def test_undecidable_input_cannot_be_allowed() -> None:
    with pytest.raises(ConfigError, match="quoting"):
        CommandPolicy(when_unclear=Decision.ALLOW)


@given(st.text(max_size=200))
def test_any_text_is_decided(text: str) -> None:
    assert decided(NO_CURL, text) in Decision
    assert decided(ONLY_STATUS, text) in Decision


QUOTED = st.lists(st.sampled_from(["{}", "'{}'", '"{}"', "\\{}", "{}''", '""{}']), min_size=4, max_size=4)
BEFORE = st.sampled_from(
    ["timeout 3 {}", "env -u A {}", "exec {}", "command {}", "time -p {}", "env A=1 {}", "nice {}"]
)
AROUND = st.sampled_from(
    [
        "{}", "true; {}", "( {} )", "{{ {}; }}", "x=$( {} )", "! {}", "true && {} &", "a | {}",
        "if true; then {}; fi", "if {}; then :; fi", "case x in x) {};; esac", "while {}; do break; done", "{} | cat",
        "f() {{ {}; }}; f", 'echo "$( {} )"', "{} 2>&1", ">/dev/null {}", "[[ -n $( {} ) ]]", "(( x = $( {} ) ))",
        "a=( $( {} ) )", "declare -a x=$( {} )", "echo ${{X:-$( {} )}}", "until {}; do break; done",
        "for x in $( {} ); do :; done", "cat <<E\n$( {} )\nE\n", "cat < <( {} )", "{} ; # c", "echo x\n{}",
        "test $( {} ) = x", "[ -n `{}` ]", "echo $(( $( {} ) + 1 ))", "true || {}", "{} >x",
    ]
)  # fmt: skip


@given(QUOTED, st.lists(BEFORE, max_size=2), st.lists(AROUND, max_size=4))
def test_however_a_name_is_quoted_and_wrapped_it_is_denied_or_asked_about(
    quoted: list[str], before: list[str], around: list[str]
) -> None:
    line = "".join(form.format(letter) for form, letter in zip(quoted, "curl", strict=True)) + " x"
    for form in (*before, *around):
        line = form.format(line)
    assert decided(NO_CURL, line) is not Decision.ALLOW
    wrapped = f"sh -c {shlex.quote(line)}"
    assert decided(NO_CURL, wrapped) is not Decision.ALLOW


def test_deep_nesting_and_much_text_are_no_danger() -> None:
    assert decided(NO_CURL, "(" * 20_000) is not Decision.ALLOW
    assert decided(NO_CURL, "$(" * 5_000 + "curl" + ")" * 5_000) is Decision.DENY
    assert decided(NO_CURL, "echo x\n" * 200_000) is Decision.ASK
    assert decided(NO_CURL, "\ud800; curl") is Decision.DENY
