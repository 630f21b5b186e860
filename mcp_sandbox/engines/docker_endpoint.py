"""Where a container engine may be reached: what the user named, the active context, then the usual sockets."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

__all__ = ["Candidate", "Endpoint", "TlsFiles", "candidates"]

_SCHEMES: Final = ("unix://", "tcp://", "http://", "https://", "ssh://")
_HOME_SOCKETS: Final = {
    "Docker Desktop": (".docker/run/docker.sock", ".docker/desktop/docker.sock"),
    "Colima": (".colima/default/docker.sock", ".colima/docker.sock", ".config/colima/default/docker.sock"),
    "OrbStack": (".orbstack/run/docker.sock",),
    "Rancher Desktop": (".rd/docker.sock",),
    "Lima": (".lima/docker/sock/docker.sock",),
    "Podman machine": (
        ".local/share/containers/podman/machine/podman.sock",
        ".local/share/containers/podman/machine/qemu/podman.sock",
        ".local/share/containers/podman/machine/applehv/podman.sock",
    ),
}
_NO_CONTEXT: Final = ("", "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What a connection by TLS is made with."""

    ca: Path | None
    certificate: Path | None
    key: Path | None
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address of an engine."""

    url: str
    tls: TlsFiles | None = None

    @property
    def is_here(self) -> bool:
        """Whether it is a socket of this machine; the engine behind it may still be in a virtual machine."""
        return self.url.startswith("unix://")

    @property
    def socket_path(self) -> str:
        """The path of a socket of this machine."""
        return self.url.removeprefix("unix://")


class Candidate(NamedTuple):
    """A place to look for an engine, or why there is no use in it."""

    origin: str
    """Who says so, for a reader."""
    endpoint: Endpoint | None
    why_not: str = ""


def candidates(environ: Mapping[str, str]) -> Iterator[Candidate]:
    """Yield the places in their order. What the environment names is the only one: another engine has other sandboxes.

    Blocks; whether anybody answers is not looked at.
    """
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("DOCKER_CONFIG") or home / ".docker")
    if host := environ.get("DOCKER_HOST", ""):
        yield _named("DOCKER_HOST", host, _tls_of_environment(environ, config))
        return
    if (context := environ.get("DOCKER_CONTEXT", "")) not in _NO_CONTEXT:
        yield _context(f"DOCKER_CONTEXT={context}", config, context)
        return
    if not context and (context := _current_context(config)) not in _NO_CONTEXT:
        yield _context(f"the active context {context!r}", config, context)
    seen: set[str] = set()
    for origin, path in _sockets(environ, home):
        if str(path) not in seen:
            seen.add(str(path))
            yield Candidate(origin, Endpoint(url=f"unix://{path}"), _no_socket(path))


def _named(origin: str, url: str, tls: TlsFiles | None) -> Candidate:
    if not url.startswith(_SCHEMES):
        return Candidate(f"{origin} ({url})", None, f"only {', '.join(_SCHEMES)} are understood")
    why = _no_socket(Path(url.removeprefix("unix://"))) if url.startswith("unix://") else ""
    return Candidate(f"{origin} ({url})", Endpoint(url=url, tls=tls), why)


def _tls_of_environment(environ: Mapping[str, str], config: Path) -> TlsFiles | None:
    directory = environ.get("DOCKER_CERT_PATH", "")
    verify = bool(environ.get("DOCKER_TLS_VERIFY"))
    if not verify and not directory:
        return None
    return _tls_in(Path(directory) if directory else config, verify=verify)


def _tls_in(directory: Path, *, verify: bool) -> TlsFiles:
    found = {name: path for name in ("ca", "cert", "key") if (path := directory / f"{name}.pem").is_file()}
    return TlsFiles(ca=found.get("ca"), certificate=found.get("cert"), key=found.get("key"), verify=verify)


def _current_context(config: Path) -> str:
    found = _object(config / "config.json").get("currentContext", "")
    return found if isinstance(found, str) else ""


def _context(origin: str, config: Path, name: str) -> Candidate:
    digest = hashlib.sha256(name.encode()).hexdigest()
    about: Any = _object(config / "contexts" / "meta" / digest / "meta.json")
    try:
        docker = about["Endpoints"]["docker"]
        url, unverified = str(docker["Host"]), bool(docker.get("SkipTLSVerify", False))
    except (KeyError, TypeError, AttributeError):
        return Candidate(origin, None, "docker knows no such context, or it has no address")
    directory = config / "contexts" / "tls" / digest / "docker"
    tls = _tls_in(directory, verify=not unverified) if directory.is_dir() or url.startswith("https://") else None
    return _named(origin, url, tls)


def _sockets(environ: Mapping[str, str], home: Path) -> Iterator[tuple[str, Path]]:
    runtime = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    yield "Docker", Path("/var/run/docker.sock")
    yield "rootless Docker", runtime / "docker.sock"
    for origin, places in _HOME_SOCKETS.items():
        yield from ((origin, home / place) for place in places)
    yield "rootless Podman", runtime / "podman" / "podman.sock"
    yield "Podman", Path("/run/podman/podman.sock")


def _no_socket(path: Path) -> str:
    """Return why a socket cannot be connected to, empty if it might."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return "it is no socket"
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(path, os.R_OK | os.W_OK) else "this user may not use it"


def _object(path: Path) -> dict[str, object]:
    try:
        found: object = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return cast(dict[str, object], found) if isinstance(found, dict) else {}
