"""Where an engine is looked for, in which order, and what is said when none is there."""

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_sandbox.core.errors import ProviderUnavailableError
from mcp_sandbox.engines.docker_client import open_client
from mcp_sandbox.engines.docker_endpoint import candidates
from tests.containers.engines import Dockerd

__all__: list[str] = []


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory whose path is short enough for sockets."""
    return tmp_path


@pytest.fixture
def dead(home: Path) -> Iterator[Path]:
    """A socket behind which nobody listens any more."""
    path = home / "run" / "docker.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    yield path


def _context(home: Path, name: str, **endpoint: object) -> None:
    digest = hashlib.sha256(name.encode()).hexdigest()
    place = home / ".docker" / "contexts" / "meta" / digest
    place.mkdir(parents=True)
    (place / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": endpoint}}))


def _environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), **more}


def _urls(environ: dict[str, str]) -> list[str]:
    return [found.endpoint.url if found.endpoint else found.why_not for found in candidates(environ)]


def test_what_the_environment_names_is_the_only_place(home: Path) -> None:
    _context(home, "mine", Host="unix:///mine.sock")
    assert _urls(_environ(home, DOCKER_HOST="tcp://engine:2375", DOCKER_CONTEXT="mine")) == ["tcp://engine:2375"]
    assert _urls(_environ(home, DOCKER_CONTEXT="mine")) == ["unix:///mine.sock"]


def test_the_active_context_comes_before_the_usual_sockets(home: Path) -> None:
    _context(home, "colima", Host="unix:///colima.sock")
    (home / ".docker" / "config.json").write_text(json.dumps({"currentContext": "colima"}))
    urls = _urls(_environ(home))
    assert urls[:3] == ["unix:///colima.sock", "unix:///var/run/docker.sock", f"unix://{home}/run/docker.sock"]
    for part in (".docker/desktop", ".orbstack", ".colima/default", "podman/podman.sock"):
        assert any(part in url for url in urls), part
    assert _urls(_environ(home, DOCKER_CONTEXT="default"))[0] == "unix:///var/run/docker.sock"


def test_a_context_brings_its_certificates(home: Path) -> None:
    _context(home, "far", Host="tcp://far:2376", SkipTLSVerify=True)
    place = home / ".docker" / "contexts" / "tls" / hashlib.sha256(b"far").hexdigest() / "docker"
    place.mkdir(parents=True)
    for name in ("ca", "cert", "key"):
        (place / f"{name}.pem").write_text("")
    (found,) = candidates(_environ(home, DOCKER_CONTEXT="far"))
    assert found.endpoint is not None
    assert found.endpoint.tls is not None
    assert (found.endpoint.tls.ca, found.endpoint.tls.verify) == (place / "ca.pem", False)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"currentContext": 5}'])
def test_settings_that_make_no_sense_are_none(home: Path, content: str) -> None:
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(content)
    assert _urls(_environ(home))[0] == "unix:///var/run/docker.sock"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("DOCKER_HOST", "npipe:////./pipe/docker", "only unix://"),
        ("DOCKER_CONTEXT", "unknown", "docker knows no such context"),
        ("DOCKER_HOST", "unix:///no/such/socket", "No such file"),
        ("DOCKER_HOST", "tcp://127.0.0.1:1", "refused"),
    ],
)
async def test_an_engine_that_was_named_and_is_not_there_is_said_so(
    home: Path, name: str, value: str, why: str
) -> None:
    with pytest.raises(ProviderUnavailableError, match=why) as refused:
        await open_client(_environ(home, **{name: value}))
    assert value in str(refused.value)


async def test_the_error_lists_every_place_and_why_it_was_none(home: Path, dead: Path) -> None:
    with pytest.raises(ProviderUnavailableError) as refused:
        await open_client(_environ(home))
    assert f"unix://{dead}" in refused.value.why
    assert "refused" in refused.value.why
    lines = refused.value.why.splitlines()
    assert f"    Colima (unix://{home}/.colima/default/docker.sock)" in lines, "each place has a line of its own"
    assert len([line for line in lines if "No such file" in line]) == 1, "each reason is given once"
    assert "DOCKER_HOST" in refused.value.fix


async def test_the_first_place_that_answers_is_taken(home: Path, dead: Path, dockerd: Dockerd) -> None:
    """A socket that nobody listens on any more is passed by."""
    place = home / ".orbstack" / "run" / "docker.sock"
    place.parent.mkdir(parents=True)
    os.symlink(dockerd.socket, place)
    client = await open_client(_environ(home))
    try:
        assert client.endpoint.url == f"unix://{place}"
        assert client.origin == "OrbStack"
        assert (await client.call("Nothing", lambda api: api.info()))["OSType"] == "linux"
    finally:
        await client.aclose()
