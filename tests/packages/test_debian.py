"""apt, dpkg and what their packages' scripts do, on the host's programs and in an image."""

import pytest

from mcp_sandbox.core.image import Image, ImageRequest, Recipe
from mcp_sandbox.core.provider import Provider, Sandbox
from mcp_sandbox.core.snapshot import SnapshotRequest
from mcp_sandbox.testing.driving import new_spec, sh
from tests.packages.driving import bring, need, said
from tests.packages.mirrors import deb_sources

__all__: list[str] = []

_INSTALL = "sh /workspace/make-repository; apt-get update -q 2>&1; apt-get install -qy greet 2>&1"


async def _install(sandbox: Sandbox) -> None:
    await need(sandbox, "apt-get", "--version")
    await need(sandbox, "dpkg-deb", "--version")
    await bring(sandbox, deb_sources())
    shown = await said(sandbox, _INSTALL)
    assert "W:" not in shown
    assert await said(sandbox, "greet-deb; dpkg-query -W -f '${Status}' greet; cat /var/lib/greet/configured-by") == (
        "good day from debian\ninstall ok installedroot\n"
    )
    assert await said(sandbox, "id -nu greet; ls /run/greet-started 2>/dev/null || echo no service") == (
        "greet\nno service\n"
    )


async def test_apt_installs_and_removes_a_package_with_scripts(host: Sandbox, provider: Provider) -> None:
    await _install(host)
    owner = "greet" if provider.capabilities.owners else "root"
    assert await said(host, "stat -c %U /var/lib/greet") == f"{owner}\n"
    await said(host, "apt-get remove -qy greet")
    assert (await sh(host, "greet-deb")).exit_code == 127


async def test_apt_believes_what_the_host_has_installed(host: Sandbox) -> None:
    await need(host, "apt-get", "--version")
    assert await said(host, "apt-get check -q >/dev/null; dpkg-query -W -f '${Status}' libc6") == "install ok installed"
    assert "debianutils" in await said(host, "dpkg -S /usr/bin/which.debianutils")


@pytest.mark.timeout(300)
async def test_apt_works_in_an_image_built_from_packages(debian: Sandbox, provider: Provider) -> None:
    """And what it installed survives a snapshot, in a sandbox made from it."""
    await _install(debian)
    assert await said(debian, "stat -c '%U %a' /var/lib/greet /etc/shadow /tmp") == ("greet 755\nroot 640\nroot 1777\n")
    snapshot = await debian.snapshot(SnapshotRequest())
    again = await provider.restore(snapshot, new_spec(provider.capabilities))
    assert await said(again, "greet-deb; stat -c %U /var/lib/greet") == "good day from debian\ngreet\n"
    await again.aclose()
    await provider.destroy(again.id)
    await provider.discard(snapshot)


@pytest.mark.timeout(300)
async def test_an_image_can_replace_its_own_files(debian: Sandbox) -> None:
    assert await said(debian, "cat /etc/debian_version | cut -d . -f 1; getent passwd root | cut -d : -f 6,7") == (
        "12\n/root:/bin/bash\n"
    )
    await said(debian, "dpkg --verify base-files; useradd -m bob; chown bob: /home/bob; rm -rf /usr/share/doc/apt")
    assert await said(debian, "stat -c %U /home/bob; ls /usr/share/doc/apt 2>&1 | wc -l") == "bob\n1\n"
    assert await said(debian, "ls /home /opt /srv /mnt /media; ls -A /root | grep -v '^\\.'|| true") == (
        "/home:\nbob\n\n/media:\n\n/mnt:\n\n/opt:\n\n/srv:\n"
    )


@pytest.mark.timeout(300)
async def test_the_same_build_is_made_once(debian: Sandbox, provider: Provider) -> None:
    async def build(name: str) -> Image:
        recipe = Recipe(distribution="debian", suite="bookworm")
        return await provider.add_image(ImageRequest(name=name, recipe=recipe))

    first, second = await build("debian:bookworm"), await build("other")
    assert first.content == second.content
    assert second.notes == ("it was there already",)
    await provider.remove_image("other")


async def test_accounts_files_and_daemons_are_managed_as_root_does(host: Sandbox, provider: Provider) -> None:
    await need(host, "useradd", "--help")
    await need(host, "start-stop-daemon", "--version")
    await said(
        host, "groupadd workers; useradd -m -G workers bob; chown -R bob:workers /home/bob; chmod 2770 /home/bob"
    )
    owner = "bob workers" if provider.capabilities.owners else "root root"
    assert await said(host, "id -Gn bob; stat -c '%U %G %a' /home/bob") == f"bob workers\n{owner} 2770\n"
    assert await said(host, "getent passwd root; sudo -E id -un; sudo -n apt-get --version >/dev/null") == (
        "root:x:0:0:root:/root:/bin/bash\nroot\n"
    )
    daemon = "--make-pidfile --pidfile /run/sleeper.pid --exec /usr/bin/sleep"
    await said(
        host, f"start-stop-daemon --start --background {daemon} -- 100; sleep 0.1; kill -0 $(cat /run/sleeper.pid)"
    )
    await said(host, "start-stop-daemon --stop --retry 5 --pidfile /run/sleeper.pid")
    assert await said(host, 'touch "$HOME/file" && echo "$HOME"') == "/root\n"
