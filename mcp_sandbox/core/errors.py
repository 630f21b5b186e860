"""The errors this package raises on purpose. Each one says what happened, why, and what to do next.

SandboxError
├── ConfigError               the operator's file, flag or environment is wrong
├── InvalidRequestError       the caller's arguments cannot be carried out as they are
├── PolicyDeniedError         the request is well formed, but the policy does not allow it
├── UnsupportedError          the provider does not declare the capability that the request needs
├── NotFoundError             no such sandbox, snapshot or job
├── StateError                it exists, but is not in a state that allows the operation
│   └── SandboxGoneError      the sandbox ended while it was in use
├── CapacityError             a quota or a concurrency limit is reached (retryable)
├── SnapshotCorruptError      stored bytes no longer match their digest
└── ProviderError             the engine failed in a way the caller did not cause
    └── ProviderUnavailableError   the engine is missing or cannot be reached (retryable)

Path failures inside a sandbox are the builtin `OSError` classes.
"""

from typing import ClassVar

__all__ = [
    "CapacityError",
    "ConfigError",
    "InvalidRequestError",
    "NotFoundError",
    "PolicyDeniedError",
    "ProviderError",
    "ProviderUnavailableError",
    "SandboxError",
    "SandboxGoneError",
    "SnapshotCorruptError",
    "StateError",
    "UnsupportedError",
]


class SandboxError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        what: What happened, as a clause that starts a sentence and has no final stop.
        why: The cause, with the numbers and names involved.
        fix: What the reader can do about it, as an imperative clause.
    """

    code: ClassVar[str] = "sandbox_error"
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, *, why: str, fix: str) -> None:
        super().__init__(f"{what}: {why}. {fix}.")
        self.what, self.why, self.fix = what, why, fix


class ConfigError(SandboxError):
    """The operator's file, flag or environment is wrong."""

    code = "config"


class InvalidRequestError(SandboxError):
    """The caller's arguments cannot be carried out as they are."""

    code = "invalid_request"


class PolicyDeniedError(SandboxError):
    """The request is well formed, but the policy does not allow it."""

    code = "policy_denied"


class UnsupportedError(SandboxError):
    """The provider does not declare the capability that the request needs."""

    code = "unsupported"


class NotFoundError(SandboxError):
    """No sandbox, snapshot or job answers to this name."""

    code = "not_found"


class StateError(SandboxError):
    """It exists, but is not in a state that allows the operation."""

    code = "bad_state"


class SandboxGoneError(StateError):
    """The sandbox ended while it was in use; its files may still exist."""

    code = "sandbox_gone"


class CapacityError(SandboxError):
    """A quota or a concurrency limit is reached."""

    code = "capacity"
    retryable = True


class SnapshotCorruptError(SandboxError):
    """Stored bytes no longer match their digest."""

    code = "snapshot_corrupt"


class ProviderError(SandboxError):
    """The engine failed in a way the caller did not cause."""

    code = "provider"


class ProviderUnavailableError(ProviderError):
    """The engine is not installed or cannot be reached."""

    code = "provider_unavailable"
    retryable = True
