"""npm."""

from mcp_sandbox.core.provider import Sandbox
from tests.packages.driving import bring, need, said
from tests.packages.mirrors import MIRROR, npm_package, npm_registry

__all__: list[str] = []


async def test_npm_installs_an_archive_for_everybody(host: Sandbox) -> None:
    await need(host, "npm", "--version")
    await bring(host, {"greet-1.0.0.tgz": npm_package()})
    await said(host, "npm install --global --offline /workspace/greet-1.0.0.tgz")
    assert await said(host, "cd /; greet-node") == "good day from node\n"


async def test_npm_installs_from_a_registry(host: Sandbox) -> None:
    await need(host, "npm", "--version")
    await need(host, "python3", "-V")
    await bring(host, npm_registry("http://127.0.0.1:8765"))
    script = f"set -- /workspace; {MIRROR} npm install --global --registry http://127.0.0.1:$port greet >&2; greet-node"
    assert await said(host, script) == "good day from node\n"


async def test_npm_installs_into_a_project(host: Sandbox) -> None:
    await need(host, "npm", "--version")
    await bring(host, {"greet-1.0.0.tgz": npm_package(), "package.json": b'{"name": "project", "version": "1.0.0"}'})
    await said(host, "npm install --offline --no-audit --no-fund ./greet-1.0.0.tgz")
    assert await said(host, "npx --no-install greet-node") == "good day from node\n"
