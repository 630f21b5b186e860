"""pip and venv."""

from mcp_sandbox.core.provider import Sandbox
from tests.packages.driving import bring, need, said
from tests.packages.mirrors import MIRROR, python_index, python_wheel

__all__: list[str] = []

_OFFLINE = "--no-index --find-links /workspace"
_WHEEL = "greet-1.0-py3-none-any.whl"


async def test_pip_installs_into_the_system_although_its_distribution_manages_it(host: Sandbox) -> None:
    """PEP 668 protects a system that must last; this one is thrown away."""
    await need(host, "python3", "-m", "pip", "--version")
    await bring(host, {_WHEEL: python_wheel()})
    assert "externally" not in await said(host, f"python3 -m pip install {_OFFLINE} greet 2>&1")
    assert await said(host, "greet; cd /; python3 -c 'import greet; greet.main()'") == "good day from python\n" * 2


async def test_pip_installs_for_the_user_on_the_path(host: Sandbox) -> None:
    await need(host, "python3", "-m", "pip", "--version")
    await bring(host, {_WHEEL: python_wheel()})
    await said(host, f"python3 -m pip install --user {_OFFLINE} greet")
    assert await said(host, "command -v greet; greet") == "/root/.local/bin/greet\ngood day from python\n"


async def test_pip_installs_from_an_index(host: Sandbox) -> None:
    await need(host, "python3", "-m", "pip", "--version")
    await bring(host, python_index())
    script = (
        f"set -- /workspace; {MIRROR} python3 -m pip install -q --index-url http://127.0.0.1:$port/simple greet; greet"
    )
    assert await said(host, script) == "good day from python\n"


async def test_a_virtual_environment_has_a_pip_that_works(host: Sandbox) -> None:
    await need(host, "python3", "-c", "import ensurepip, venv")
    await bring(host, {_WHEEL: python_wheel()})
    await said(host, f"python3 -m venv /root/environment; /root/environment/bin/pip install -q {_OFFLINE} greet")
    assert await said(host, "/root/environment/bin/greet") == "good day from python\n"
    assert await said(host, "command -v greet || echo only there") == "only there\n"
