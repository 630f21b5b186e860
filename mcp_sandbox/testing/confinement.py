"""Nothing of the host is visible or reachable, for programs as for file verbs; and neighbours do not exist."""

import contextlib
import os
import re
import socket
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.capability import Isolation
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.exec import ExecRequest
from mcp_sandbox.core.files import ReadRequest
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.testing.contract import Canary, Contract
from mcp_sandbox.testing.driving import HANG_S, entries, new_spec, put, read_file, run, sh, wait_for_file

__all__ = ["ConfinementContract"]

RACER = """
import ctypes, sys, time
exchange = {"x86_64": 316, "aarch64": 276}[__import__("platform").machine()]
libc, end = ctypes.CDLL(None), time.monotonic() + 4
print("racing", flush=True)
while time.monotonic() < end:
    libc.syscall(exchange, -100, b"/workspace/d", -100, b"/workspace/l", 2)
"""
CONNECT = """
import socket, sys
for host, port in [a.rsplit(":", 1) for a in sys.argv[1:]]:
    try:
        socket.create_connection((host, int(port)), timeout=2)
        print("CONNECTED", host)
    except OSError as error:
        print("refused", host, error)
"""
ABSTRACT = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect("\\0" + sys.argv[1])
    print("CONNECTED")
except OSError as error:
    print("refused", error)
"""


def _mentions(text: str, path: str) -> bool:
    """Whether a path, or one below it, is named in a text."""
    return len(Path(path).parts) > 1 and re.search(re.escape(path) + r"(?![\w.-])", text) is not None


class ConfinementContract(Contract):
    """For every provider that declares a boundary."""

    # -- the host's environment and processes

    async def test_cr01_the_hosts_environment_is_not_in_a_commands(self, confined: Sandbox, canary: Canary) -> None:
        """CR-01, B-109, M-15, M-19: no variable of the server reaches a command unless it was asked for."""
        shown = (await run(confined, "env", "-0")).stdout
        assert canary.token.encode() not in shown
        names = {pair.split(b"=", 1)[0].decode() for pair in shown.split(b"\0") if pair}
        own = {"PYTEST_CURRENT_TEST", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "VIRTUAL_ENV", "XDG_RUNTIME_DIR"}
        assert not names & own

    async def test_cr02_b097_no_process_inside_holds_the_hosts_environment_or_arguments(
        self, confined: Sandbox, canary: Canary
    ) -> None:
        """B-097, CR-02: neither does the process that started the sandbox, which is number 1 inside."""
        script = 'cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" "\\n"'
        shown = (await sh(confined, script)).stdout.decode("utf-8", "replace")
        assert canary.token not in shown
        assert "pytest" not in shown

    async def test_cr03_processes_of_the_host_do_not_exist_inside(self, shared_kernel: Sandbox) -> None:
        """CR-03: an own pid namespace, with few processes in it, of which ours is none."""
        count = int((await sh(shared_kernel, "ls -d /proc/[0-9]* | wc -l")).stdout)
        assert count < 10
        names = (await sh(shared_kernel, "cat /proc/[0-9]*/comm 2>/dev/null")).stdout.decode()
        assert not {"pytest", "python", "python3", "systemd", "init"} & set(names.split())

    async def test_every_namespace_is_the_sandboxs_own(self, shared_kernel: Sandbox) -> None:
        """That of users may be the host's where a container engine makes it, and then nobody inside is root."""
        kinds = ["pid", "mnt", "net", "ipc", "uts", "user"]
        if shared_kernel.capabilities.isolation >= Isolation.CONTAINER and not shared_kernel.capabilities.root_inside:
            assert (await run(shared_kernel, "id", "-u")).stdout != b"0\n"
            kinds.remove("user")
        shown = await sh(shared_kernel, 'for n; do readlink "/proc/self/ns/$n"; done', *kinds)
        inside = shown.stdout.decode().split()
        assert len(inside) == len(kinds)
        own = {str(await anyio.Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds}
        assert not own & set(inside)

    async def test_cr04_a_command_has_three_open_files(self, shared_kernel: Sandbox) -> None:
        """CR-04: no descriptor of the server or of the agent is inherited."""
        shown = (await run(shared_kernel, "ls", "-l", "/proc/self/fd")).stdout.decode()
        found = dict(re.findall(r" (\d+) -> (.+)$", shown, re.MULTILINE))
        assert {"0", "1", "2"} <= set(found)
        # The fourth is the listing's own, of the directory that it lists.
        assert [target for number, target in found.items() if int(number) > 2 and not target.endswith("/fd")] == []
        assert "socket:" not in shown

    async def test_the_hosts_name_is_not_the_sandboxs(self, shared_kernel: Sandbox) -> None:
        assert (
            await run(shared_kernel, "cat", "/proc/sys/kernel/hostname")
        ).stdout.decode().strip() != os.uname().nodename

    # -- the host's files

    async def test_fs01_a_file_of_the_host_is_found_nowhere(self, confined: Sandbox, canary: Canary) -> None:
        """FS-01, FS-06, CR-06: neither by its path, nor through a process's root, nor by any search."""
        routes = ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/proc/self/cwd/../../../..", "/.."]
        shown = await sh(confined, 'for p; do cat "$p"; done; find / -name "$1" 2>/dev/null', *self.by(canary, routes))
        assert canary.token.encode() not in shown.stdout
        search = f'find / -path /proc -prune -o -name "*{canary.token}*" -print 2>/dev/null'
        assert (await sh(confined, search)).stdout == b""
        places = "/tmp /var /root /home /mnt /media /srv /opt /run /etc /dev/shm /workspace"
        assert (await sh(confined, f"grep -rlsI {canary.token} {places}")).stdout == b""

    async def test_fs02_file_verbs_do_not_reach_a_file_of_the_host(self, confined: Sandbox, canary: Canary) -> None:
        """FS-02, FS-03, FS-06, B-046."""
        routes = ["", "/proc/1/root", "/proc/self/root", "/workspace/../../../../..", "/proc/self/cwd/../../../.."]
        for path in self.by(canary, routes):
            with pytest.raises((OSError, SandboxError)):
                await confined.read(ReadRequest(path=path))

    async def test_b043_planted_links_lead_nowhere_on_the_host(self, confined: Sandbox, canary: Canary) -> None:
        """B-043, B-044, FS-04: read and write through links to the host's files and directories."""
        script = 'ln -s "$1" file; ln -s "$2" directory; ln -s "$2/made" dangling'
        await sh(confined, script, str(canary.file), str(canary.file.parent))
        for path in ("file", f"directory/{canary.file.name}"):
            with pytest.raises((OSError, SandboxError)):
                await confined.read(ReadRequest(path=f"/workspace/{path}"))
        for path in ("file", "directory/made", "dangling", f"directory/{canary.file.name}"):
            with contextlib.suppress(OSError, SandboxError):
                await put(confined, f"/workspace/{path}", b"overwritten")
        assert [path.name for path in canary.file.parent.iterdir() if path.is_file()] == [canary.file.name]
        assert canary.file.read_text() == canary.token

    async def test_fs05_a_directory_that_becomes_a_link_during_a_call_leads_nowhere(
        self, python: str, confined: Sandbox, canary: Canary
    ) -> None:
        """B-045, FS-05: a racer swaps them thousands of times a second."""
        await put(confined, "/workspace/d/f", b"inside")
        await put(confined, f"/workspace/d/{canary.file.name}", b"inside")
        await run(confined, "ln", "-s", str(canary.file.parent), "/workspace/l")
        async with await confined.exec(ExecRequest(argv=(python, "-c", RACER))) as racer:
            await racer.receive()
            until = anyio.current_time() + 2
            while anyio.current_time() < until:
                with contextlib.suppress(OSError, SandboxError):
                    assert await read_file(confined, f"/workspace/d/{canary.file.name}") != canary.token.encode()
                with contextlib.suppress(OSError, SandboxError):
                    await put(confined, "/workspace/d/made", b"x")
        assert [path.name for path in canary.file.parent.iterdir() if path.is_file()] == [canary.file.name]

    async def test_the_hosts_passwords_are_not_the_sandboxs(self, confined: Sandbox) -> None:
        shadow = b""
        with contextlib.suppress(OSError):
            shadow = await anyio.Path("/etc/shadow").read_bytes()
        await run(confined, "ln", "-s", "/etc/shadow", "link")
        for path in ("/etc/shadow", "/workspace/link"):
            inside = b""
            with contextlib.suppress(OSError, SandboxError):
                inside = await read_file(confined, path)
            assert not inside or inside != shadow

    async def test_no_path_of_the_host_is_told(
        self, shared_kernel: Sandbox, canary: Canary, host_paths: tuple[str, ...]
    ) -> None:
        """Not in mount tables, not in memory maps, not as a program's place."""
        script = "cat /proc/self/mountinfo /proc/mounts /proc/[0-9]*/mountinfo /proc/[0-9]*/maps /proc/swaps; "
        script += "readlink /proc/[0-9]*/exe /proc/[0-9]*/cwd /proc/[0-9]*/root /proc/[0-9]*/fd/*"
        shown = (await sh(shared_kernel, f"({script}) 2>/dev/null")).stdout.decode("utf-8", "replace")
        assert "/proc" in shown
        paths = (*host_paths, str(canary.file.parent), str(await anyio.Path.cwd()))
        assert [path for path in paths if _mentions(shown, path)] == []

    @pytest.mark.parametrize(
        "path", ["/proc/self/mem", "/proc/kmsg", "/proc/kcore", "/proc/self/environ", "/proc/1/mem"]
    )
    async def test_ft02_odd_files_of_proc_neither_hang_nor_tell(
        self, confined: Sandbox, canary: Canary, path: str
    ) -> None:
        """FT-02: their size is 0, their content endless, blocking or somebody's memory; links to them as well."""
        await run(confined, "ln", "-s", path, "link")
        for name in (path, "/workspace/link"):
            content = b""
            with anyio.fail_after(5), contextlib.suppress(OSError, SandboxError):
                async with await confined.read(ReadRequest(path=name, length=1 << 20)) as reader:
                    content = await reader.receive()
            assert canary.token.encode() not in content
            assert b"\x7fELF" not in content

    async def test_fs07_sockets_and_runtime_directories_of_the_host_are_absent(self, confined: Sandbox) -> None:
        """FS-07, CR-07."""
        script = (
            "ls -d /var/run/docker.sock /run/docker.sock /run/containerd /run/podman /run/user/* /run/dbus /tmp/.X11*"
        )
        assert (await sh(confined, f"{script} 2>/dev/null")).stdout == b""

    # -- the network

    async def test_net01_there_is_no_network_but_loopback(self, confined: Sandbox) -> None:
        """NET-01, M-12, B-099: with network mode `none`, which is the default."""
        devices = (await sh(confined, "sed -n '3,$s/:.*//p' /proc/net/dev")).stdout.split()
        assert devices in ([b"lo"], [])
        routes = (await sh(confined, "tail -n +2 /proc/net/route; grep -v ' lo$' /proc/net/ipv6_route")).stdout
        assert routes == b""

    async def test_cr05_neither_the_hosts_services_nor_the_internet_answer(
        self, python: str, confined: Sandbox
    ) -> None:
        """CR-05: the host's loopback, metadata services, well-known addresses."""
        with self.listening() as port:
            addresses = [
                f"127.0.0.1:{port}",
                f"localhost:{port}",
                "169.254.169.254:80",
                "100.100.100.200:80",
                "1.1.1.1:53",
            ]
            shown = await run(confined, python, "-c", CONNECT, *addresses)
        assert shown.exit_code == 0
        assert b"CONNECTED" not in shown.stdout

    async def test_a_nameless_socket_of_the_host_does_not_answer(
        self, python: str, confined: Sandbox, canary: Canary
    ) -> None:
        """Abstract sockets belong to the network namespace, whatever the file system shows."""
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"\0{canary.token}")
            server.listen()
            shown = await run(confined, python, "-c", ABSTRACT, canary.token)
        assert shown.stdout.startswith(b"refused")

    # -- neighbours

    async def test_xs01_a_sandbox_sees_nothing_of_another_one(self, provider: Provider, confined: Sandbox) -> None:
        """XS-01: files, processes, temporary files, shared memory, listeners."""
        spec = new_spec(provider.capabilities)
        async with await provider.create(spec) as other:
            for place in ("/workspace", "/tmp", "/dev/shm", "/var/tmp"):
                await put(other, f"{place}/of-the-other")
            async with await other.exec(ExecRequest(argv=("sh", "-c", "echo > /workspace/up; sleep 61.75; :"))):
                await wait_for_file(other, "/workspace/up")
                seen = await sh(confined, 'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" " " | sed "s/cat .*//"')
                assert b"61.75" not in seen.stdout
                found = await sh(confined, "find / -path /proc -prune -o -name of-the-other -print 2>/dev/null")
                assert found.stdout == b""
                assert await entries(confined, "/workspace") == {}
        await provider.destroy(spec.id)

    async def test_signals_do_not_reach_another_sandbox(self, provider: Provider, confined: Sandbox) -> None:
        spec = new_spec(provider.capabilities)
        async with (
            await provider.create(spec) as other,
            await other.exec(ExecRequest(argv=("cat",), stdin=True)) as execution,
        ):
            await sh(confined, "kill -KILL -1", timeout_s=5)
            await execution.write_stdin(b"alive")
            with anyio.fail_after(HANG_S):
                await execution.receive()
            await execution.kill()
        await provider.destroy(spec.id)

    @staticmethod
    def by(canary: Canary, routes: list[str]) -> list[str]:
        """Return the paths that would lead to the canary over each of the routes."""
        return [f"{route}{canary.file}" for route in routes]

    @staticmethod
    @contextlib.contextmanager
    def listening() -> Generator[int]:
        """Listen on the host's loopback; yields the port."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield server.getsockname()[1]
