"""The API of a container engine through the `docker` SDK, off the event loop; errors are ours."""

import contextlib
import importlib
import os
import socket
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, TypeVar, cast

import anyio
from anyio import to_thread

from mcp_sandbox.core.errors import (
    NotFoundError,
    ProviderError,
    ProviderUnavailableError,
    SandboxError,
    StateError,
)
from mcp_sandbox.engines.docker_api import EngineApi
from mcp_sandbox.engines.docker_endpoint import Candidate, Endpoint, candidates

__all__ = ["DockerClient", "open_client"]

_Value = TypeVar("_Value")
CALLS_AT_ONCE: Final = 64
"""Threads of their own: one slow call starves nobody."""
CONNECT_S: Final = 10
CALL_S: Final = 120
"""Longer than the engine takes to stop or to remove what does not want to."""
_INSTALL: Final = "Install it: pip install 'docker>=7.1,<8'"


class DockerClient:
    """One engine. Close it."""

    def __init__(self, api: EngineApi, endpoint: Endpoint, origin: str) -> None:
        self._api = api
        self._limiter = anyio.CapacityLimiter(CALLS_AT_ONCE)
        self.endpoint = endpoint
        self.origin = origin
        """Who named the endpoint, for a reader."""

    async def call(self, what: str, use: Callable[[EngineApi], _Value]) -> _Value:
        """Carry out a blocking use of the API in a thread.

        Args:
            what: What did not happen if it fails, as the beginning of a sentence.
            use: Gets the client of the SDK.

        Raises:
            NotFoundError: The engine knows nothing of what the use is about.
            StateError: It is not in a state for that (status 409).
            ProviderUnavailableError: The engine does not answer.
            ProviderError: It refuses or fails, in its own words.
        """

        def work() -> _Value:
            with _translated(what):
                return use(self._api)

        return await to_thread.run_sync(work, limiter=self._limiter)

    async def aclose(self) -> None:
        """Close the idle connections."""
        await to_thread.run_sync(self._api.close)


async def open_client(environ: Mapping[str, str] = os.environ) -> DockerClient:
    """Find a container engine and connect to it.

    Raises:
        ProviderUnavailableError: The SDK is missing, or nobody answers; names every place that was tried, and why not.
    """
    return await to_thread.run_sync(_find, environ)


def _find(environ: Mapping[str, str]) -> DockerClient:
    try:
        importlib.import_module("docker.errors")  # 0.2 s that nobody else waits for
    except ImportError as error:
        raise ProviderUnavailableError(
            "No container engine can be used", why=f"the Python package 'docker' is missing ({error})", fix=_INSTALL
        ) from error
    tried: dict[str, list[str]] = {}
    for candidate in candidates(environ):
        try:
            return _connected(candidate)
        except ProviderError as error:
            tried.setdefault(error.why, []).append(f"{candidate.origin}{_place(candidate)}")
    raise ProviderUnavailableError(
        "No container engine answers",
        why="".join("\n    ".join([f"\n  {why}:", *places]) for why, places in tried.items()),
        fix="Start Docker or Podman (`sudo systemctl start docker`, `podman system service --time=0 &`), "
        "or name its socket in DOCKER_HOST",
    )


def _place(candidate: Candidate) -> str:
    url = candidate.endpoint.url if candidate.endpoint else ""
    return f" ({url})" if url and url not in candidate.origin else ""


def _connected(candidate: Candidate) -> DockerClient:
    from docker.api import APIClient
    from docker.tls import TLSConfig

    endpoint = candidate.endpoint
    if endpoint is None or candidate.why_not:
        raise ProviderUnavailableError("No engine", why=candidate.why_not, fix="")
    if endpoint.is_here:  # the SDK leaves a socket open that it cannot connect
        _require_listener(endpoint.socket_path)
    tls: TLSConfig | bool = False
    with _translated("No engine"):
        if (files := endpoint.tls) is not None:
            pair = (str(files.certificate), str(files.key)) if files.certificate and files.key else None
            tls = TLSConfig(client_cert=pair, ca_cert=str(files.ca) if files.ca else None, verify=files.verify)
        api = APIClient(
            base_url=endpoint.url, version="auto", timeout=CONNECT_S, tls=tls, max_pool_size=CALLS_AT_ONCE,
            use_ssh_client=endpoint.url.startswith("ssh://"),
        )  # fmt: skip
    api.timeout = CALL_S
    return DockerClient(cast(EngineApi, api), endpoint, candidate.origin)


def _require_listener(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(path)
        except OSError as error:
            raise ProviderUnavailableError("No engine", why=error.strerror or str(error), fix="") from error


@contextlib.contextmanager
def _translated(what: str) -> Generator[None]:
    """Turn the errors of the SDK, and of what it stands on, into ours."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except SandboxError:
        raise
    except APIError as error:
        raise _refused(what, error) from error
    except (DockerException, RequestException, HTTPError, OSError) as error:
        raise ProviderUnavailableError(
            what, why=f"the container engine does not answer ({_cause(error)})", fix="Start it, then call again"
        ) from error


def _refused(what: str, error: Any) -> SandboxError:
    status = error.response.status_code if error.response is not None else 0
    said = _printable(str(error.explanation or error))
    if status == 404:
        return NotFoundError(what, why=said, fix="Create it again")
    if status == 409:
        return StateError(what, why=said, fix="Try again in a moment")
    return ProviderError(what, why=f"the container engine says: {said}", fix="Correct what it names, then try again")


def _cause(error: BaseException) -> str:
    """Return what the system said, if it said anything: the errors around that name classes of the SDK."""
    words, at = str(error), error
    while (inner := at.__cause__ or at.__context__) is not None:
        at = inner
        if isinstance(at, OSError) and at.strerror:
            words = at.strerror
    return _printable(getattr(error, "strerror", None) or words) or type(error).__name__


def _printable(text: str) -> str:
    """Return an engine's words in one line: they quote what a model named, and may end on a terminal."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
