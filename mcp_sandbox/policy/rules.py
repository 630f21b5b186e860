"""Pure decisions: a request and a policy in, an admitted request or a refusal out."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mcp_sandbox.core.admission import require_enforceable
from mcp_sandbox.core.capability import Capabilities, Isolation, NetworkMode
from mcp_sandbox.core.errors import InvalidRequestError, PolicyDeniedError, UnsupportedError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.sandbox import Limits, SandboxSpec, WorkspaceMode
from mcp_sandbox.core.wording import limit_text

__all__ = [
    "Policy",
    "admit_exec",
    "admit_isolation",
    "admit_mode",
    "admit_path",
    "admit_provider",
    "admit_range",
    "admit_spec",
]

_MIB = 1024 * 1024
_SAFE_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_PATH_BYTES = 4096
_NO_CEILINGS = Limits(pids=None, open_files=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator allows; requests may ask for less, never for more."""

    min_isolation: Isolation = Isolation.NAMESPACE
    """The weakest boundary behind which anything may run."""
    network: frozenset[NetworkMode] = frozenset({NetworkMode.NONE})
    """Modes that a sandbox may ask for."""
    ceilings: Limits = _NO_CEILINGS
    """The highest limits that a sandbox may ask for; one that asks for none gets the ceiling itself."""
    providers: frozenset[str] | None = None
    """Providers that new sandboxes may be on; `None` is any."""
    images: frozenset[str] | None = None
    """Images that may be booted; `None` is any."""
    max_timeout_s: float | None = None
    """The longest deadline of a command; one that asks for none gets this one. `None` is no bound."""
    max_argv_bytes: int = 2 * _MIB
    """Program and arguments together, as the kernel counts them: each one with its final NUL."""
    max_env_bytes: int = _MIB
    max_write_bytes: int | None = None
    """Bytes that one write or one upload may carry; `None` is no bound."""


def admit_provider(policy: Policy, provider: str) -> None:
    """Refuse a provider that the policy does not list."""
    if policy.providers is not None and provider not in policy.providers:
        raise PolicyDeniedError(
            f"Provider {provider!r} refused",
            why=f"the policy allows only {', '.join(sorted(policy.providers)) or 'none'}",
            fix="Use one of them, or have the operator add it to 'policy.providers'",
        )


def admit_isolation(policy: Policy, provider: str, given: Isolation, what: str) -> None:
    """Refuse a boundary that is weaker than the policy allows."""
    if given < policy.min_isolation:
        raise UnsupportedError(
            what,
            why=f"the policy needs isolation {policy.min_isolation.name}, provider {provider!r} gives {given.name}",
            fix="Choose a stronger provider, or lower 'min_isolation' in the policy",
        )


def admit_spec(policy: Policy, provider: str, capabilities: Capabilities, spec: SandboxSpec) -> SandboxSpec:
    """Return the spec with the policy's ceilings filled in.

    Raises:
        InvalidRequestError: A field makes no sense.
        PolicyDeniedError: The policy does not allow a field's value.
        UnsupportedError: The provider cannot enforce a field, or its isolation is too weak.
    """
    if not _SAFE_ID.fullmatch(spec.id):
        raise InvalidRequestError(
            f"Sandbox id {spec.id!r} refused", why="it is not made of a-z, 0-9, '_' and '-'", fix="Generate an id"
        )
    admit_provider(policy, provider)
    if (spec.workspace.mode is WorkspaceMode.EMPTY) is not (spec.workspace.source is None):
        raise InvalidRequestError(
            f"Workspace mode {spec.workspace.mode.value!r} refused",
            why="'overlay', 'copy' and 'mount' need a source directory, and 'empty' must not have one",
            fix="Correct 'workspace'",
        )
    _admit_env(policy, spec.env)
    given = capabilities.runtimes.get(spec.runtime, capabilities.isolation) if spec.runtime else capabilities.isolation
    admit_isolation(policy, provider, given, "Sandbox not created")
    if spec.network not in policy.network:
        raise PolicyDeniedError(
            f"Network mode {spec.network.value!r} refused",
            why=f"the policy allows only {', '.join(sorted(policy.network))}",
            fix="Ask for less network, or have the operator add the mode to 'network' in the policy",
        )
    if spec.image is not None and policy.images is not None and spec.image not in policy.images:
        raise PolicyDeniedError(
            f"Image {spec.image!r} refused",
            why=f"the policy allows only {', '.join(sorted(policy.images)) or 'the default image'}",
            fix="Use one of them, or have the operator add it to 'images' in the policy",
        )
    admitted = replace(spec, limits=_admit_limits(policy.ceilings, spec.limits))
    require_enforceable(provider, capabilities, admitted)
    return admitted


def _admit_limits(ceilings: Limits, asked: Limits) -> Limits:
    admitted: dict[str, Any] = {}
    for field in fields(Limits):
        wanted, ceiling = getattr(asked, field.name), getattr(ceilings, field.name)
        if wanted is not None and not 0 < wanted < math.inf:
            raise InvalidRequestError(
                f"Limit refused: {limit_text(field.name, wanted)}", why="it is not a positive number", fix="Correct it"
            )
        if wanted is not None and ceiling is not None and wanted > ceiling:
            raise PolicyDeniedError(
                f"Limit refused: {limit_text(field.name, wanted)}",
                why=f"the policy allows at most {limit_text(field.name, ceiling)}",
                fix=f"Ask for less, or have the operator raise {field.name!r} in the policy",
            )
        admitted[field.name] = ceiling if wanted is None else wanted
    return Limits(**admitted)


def admit_exec(policy: Policy, request: ExecRequest) -> ExecRequest:
    """Return the request with the policy's deadline filled in.

    Raises:
        InvalidRequestError: A field makes no sense or is too large to be carried out.
        PolicyDeniedError: The deadline is longer than the policy allows.
    """
    if not request.argv or not request.argv[0]:
        raise InvalidRequestError("Command refused", why="it names no program", fix="Give a program to run")
    size = 0
    for word in request.argv:
        _refuse_nul("Argument", word)
        size += len(os.fsencode(word)) + 1
    if size > policy.max_argv_bytes:
        raise InvalidRequestError(
            "Command refused",
            why=f"its arguments are {size} bytes, {policy.max_argv_bytes} at most can be passed",
            fix="Write the data to a file, or send it on standard input",
        )
    admit_path(request.cwd)
    _admit_env(policy, request.env)
    if request.timeout_s is None:
        return request if policy.max_timeout_s is None else replace(request, timeout_s=policy.max_timeout_s)
    if not 0 < request.timeout_s < math.inf:
        raise InvalidRequestError(
            f"timeout_s = {request.timeout_s} refused", why="it is not a positive number", fix="Correct it"
        )
    if policy.max_timeout_s is not None and request.timeout_s > policy.max_timeout_s:
        raise PolicyDeniedError(
            f"timeout_s = {request.timeout_s:g} refused",
            why=f"the policy allows at most {policy.max_timeout_s:g}",
            fix="Ask for less, or have the operator raise 'max_timeout_s' in the policy",
        )
    return request


def admit_path(path: str) -> None:
    """Refuse a path that no sandbox can have.

    Raises:
        InvalidRequestError: It is relative, holds a NUL, or is longer than the kernel takes.
    """
    _refuse_nul("Path", path)
    if not path.startswith("/"):
        raise InvalidRequestError(f"Path {path!r} refused", why="it is relative", fix="Use an absolute path")
    if len(path) >= _PATH_BYTES // 4 and len(os.fsencode(path)) >= _PATH_BYTES:
        raise InvalidRequestError(
            f"Path {path[:64]!r}... refused",
            why=f"it is {len(os.fsencode(path))} bytes, {_PATH_BYTES - 1} at most can be used",
            fix="Use a shorter path",
        )


def admit_mode(mode: int) -> None:
    """Refuse a number that holds more than permission bits."""
    if not 0 <= mode <= 0o7777:
        raise InvalidRequestError(f"mode = {mode:#o} refused", why="it is not within 0 to 0o7777", fix="Correct it")


def admit_range(name: str, value: int, least: int, most: int | None = None) -> None:
    """Refuse a count, an offset or a port beyond what makes sense."""
    if value < least:
        raise InvalidRequestError(f"{name} = {value} refused", why=f"it is below {least}", fix="Correct it")
    if most is not None and value > most:
        raise InvalidRequestError(f"{name} = {value} refused", why=f"it is above {most}", fix="Correct it")


def _admit_env(policy: Policy, env: Mapping[str, str]) -> None:
    together = "".join([*env, *env.values()])
    holds_nul = "\0" in together
    for name, value in env.items():
        if not name or "=" in name:
            raise InvalidRequestError(
                f"Variable {name!r} refused", why="a name is not empty and has no '='", fix="Correct 'env'"
            )
        if holds_nul:
            _refuse_nul("Variable", name)
            if "\0" in value:
                raise InvalidRequestError(f"Variable {name!r} refused", why="its value holds a NUL", fix="Remove it")
    size = len(os.fsencode(together)) + 2 * len(env)
    if size > policy.max_env_bytes:
        raise InvalidRequestError(
            "Environment refused",
            why=f"it is {size} bytes, {policy.max_env_bytes} at most can be passed",
            fix="Write the data to a file",
        )


def _refuse_nul(what: str, text: str) -> None:
    if "\0" in text:
        raise InvalidRequestError(f"{what} {text[:64]!r} refused", why="it holds a NUL", fix="Remove the NUL")
