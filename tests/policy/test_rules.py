"""What the policy admits, fills in and refuses; every refusal names the field and the way out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_sandbox.core.capability import Capabilities, Isolation, NetworkMode
from mcp_sandbox.core.errors import InvalidRequestError, PolicyDeniedError, SandboxError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.sandbox import Limits, SandboxId, SandboxSpec, Workspace, WorkspaceMode
from mcp_sandbox.policy.rules import Policy, admit_exec, admit_path, admit_spec

CAPABILITIES = Capabilities(
    isolation=Isolation.NAMESPACE,
    network=frozenset({NetworkMode.NONE, NetworkMode.FULL}),
    limits=frozenset({"pids", "open_files", "memory_bytes"}),
)
POLICY = Policy()
SPEC = SandboxSpec(id=SandboxId("sb_aaaaaaaaaaaaaaaaaaaaaaaaaa"))
EXEC = ExecRequest(argv=("true",))


def admitted(spec: SandboxSpec, policy: Policy = POLICY, capabilities: Capabilities = CAPABILITIES) -> SandboxSpec:
    return admit_spec(policy, "test", capabilities, spec)


def test_a_plain_spec_and_a_plain_command_are_admitted_as_they_are() -> None:
    assert admitted(SPEC) == SPEC
    assert admit_exec(POLICY, EXEC) is EXEC


@pytest.mark.parametrize("sandbox_id", ["", "../other", "a/b", ".hidden", "UPPER", "x" * 65, "sb_\0", "sb_ä"])
def test_xs03_an_id_that_could_be_a_path_or_a_flag_is_refused(sandbox_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="id"):
        admitted(replace(SPEC, id=SandboxId(sandbox_id)))


def test_an_isolation_that_is_too_weak_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="min_isolation"):
        admitted(SPEC, replace(POLICY, min_isolation=Isolation.MICROVM))
    assert admitted(SPEC, capabilities=replace(CAPABILITIES, isolation=Isolation.MICROVM)) == SPEC


def test_b099_no_network_is_the_default_and_more_is_the_operators_choice() -> None:
    with pytest.raises(PolicyDeniedError, match="'network' in the policy"):
        admitted(replace(SPEC, network=NetworkMode.FULL))
    wide = replace(POLICY, network=frozenset(NetworkMode))
    assert admitted(replace(SPEC, network=NetworkMode.FULL), wide).network is NetworkMode.FULL
    with pytest.raises(UnsupportedError, match="enforces only"):
        admitted(replace(SPEC, network=NetworkMode.ALLOWLIST), wide)


def test_a_limit_within_the_ceiling_is_kept_and_none_becomes_the_ceiling() -> None:
    policy = replace(POLICY, ceilings=Limits(pids=100, open_files=None, memory_bytes=1000))
    assert admitted(replace(SPEC, limits=Limits(pids=50, open_files=7)), policy).limits == Limits(
        pids=50, open_files=7, memory_bytes=1000
    )
    with pytest.raises(PolicyDeniedError, match="Limit refused: pids 512: the policy allows at most pids 100"):
        admitted(SPEC, policy)


def test_a_limit_that_the_provider_cannot_enforce_is_refused_also_if_the_policy_set_it() -> None:
    with pytest.raises(UnsupportedError, match="disk 1 B"):
        admitted(replace(SPEC, limits=Limits(disk_bytes=1)))
    with pytest.raises(UnsupportedError, match="cpus 2"):
        admitted(SPEC, replace(POLICY, ceilings=Limits(pids=None, open_files=None, cpu_count=2)))


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_is_no_positive_number_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="positive"):
        admitted(replace(SPEC, limits=Limits(cpu_count=value)))


def test_images_are_free_or_listed() -> None:
    wanted = replace(SPEC, image="python:3.13")
    assert admitted(wanted) == wanted
    assert admitted(wanted, replace(POLICY, images=frozenset({"python:3.13"}))) == wanted
    with pytest.raises(PolicyDeniedError, match="'images' in the policy"):
        admitted(wanted, replace(POLICY, images=frozenset({"node:24"})))


@pytest.mark.parametrize(
    "workspace",
    [Workspace(mode=WorkspaceMode.OVERLAY), Workspace(mode=WorkspaceMode.EMPTY, source="/somewhere")],
    ids=["overlay of nothing", "empty with a source"],
)
def test_a_workspace_that_contradicts_itself_is_refused(workspace: Workspace) -> None:
    with pytest.raises(InvalidRequestError, match="workspace"):
        admitted(replace(SPEC, workspace=workspace))


def test_a_deadline_is_filled_in_kept_or_refused_but_never_changed_silently() -> None:
    policy = replace(POLICY, max_timeout_s=100.0)
    assert admit_exec(policy, EXEC).timeout_s == 100.0
    assert admit_exec(policy, replace(EXEC, timeout_s=5.0)).timeout_s == 5.0
    with pytest.raises(PolicyDeniedError, match="timeout_s = 101 refused: the policy allows at most 100"):
        admit_exec(policy, replace(EXEC, timeout_s=101.0))
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidRequestError, match="timeout_s"):
            admit_exec(POLICY, replace(EXEC, timeout_s=value))


@pytest.mark.parametrize(
    "request_",
    [
        replace(EXEC, argv=()),
        replace(EXEC, argv=("",)),
        replace(EXEC, argv=("echo", "a\0b")),
        replace(EXEC, argv=("echo", "x" * 3_000_000)),
        replace(EXEC, argv=("echo", *["y" * 1000] * 3000)),
        replace(EXEC, cwd="relative"),
        replace(EXEC, cwd="/a\0b"),
        replace(EXEC, cwd="/" + "x" * 5000),
        replace(EXEC, env={"": "x"}),
        replace(EXEC, env={"A=B": "x"}),
        replace(EXEC, env={"A\0": "x"}),
        replace(EXEC, env={"A": "x\0"}),
        replace(EXEC, env={"A": "x" * 2_000_000}),
    ],
    ids=lambda request: repr(request)[12:60],
)
def test_a_command_that_cannot_be_carried_out_is_refused(request_: ExecRequest) -> None:
    with pytest.raises(InvalidRequestError):
        admit_exec(POLICY, request_)


def test_a_refusal_of_something_long_is_short() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        admit_path("/\0" + "x" * 100_000)
    assert len(str(caught.value)) < 300


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200))
def test_text_without_nul_is_admitted_anywhere(text: str) -> None:
    request = ExecRequest(argv=("echo", text), env={"A": text}, cwd=f"/{text}")
    assert admit_exec(POLICY, request) is request


@given(st.text(max_size=5000))
def test_a_path_is_admitted_exactly_if_a_kernel_could_take_it(path: str) -> None:
    possible = path.startswith("/") and "\0" not in path and len(path.encode("utf-8", "surrogatepass")) < 4096
    try:
        admit_path(path)
    except SandboxError:
        assert not possible
    else:
        assert possible
