"""Images of a container engine: its own, and those made from a directory, an archive or packages."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_sandbox.core.errors import InvalidRequestError, ProviderError
from mcp_sandbox.core.image import Image, ImageRequest, Recipe
from mcp_sandbox.providers.docker import DockerProvider
from mcp_sandbox.testing.driving import new_spec, sh
from tests.containers.engines import Dockerd, Engine, Podman
from tests.images.small_root import docker_archive, small_root, tar_of
from tests.providers.docker_sandboxes import provider_on

__all__: list[str] = []


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Both kinds of engines."""
    fixture = "dockerd" if request.param == "docker" else "podman"
    found: Dockerd | Podman = request.getfixturevalue(fixture)
    return found


@pytest.fixture
async def provider(engine: Engine, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """A provider whose images are gone afterwards."""
    (tmp_path / "state").mkdir()
    async with provider_on(engine, tmp_path / "state") as opened:
        yield opened
        for image in await opened.images():
            if image.origin != "the container engine":
                await opened.remove_image(image.name)
        assert list((tmp_path / "state").glob("image-*")) == []


async def said(provider: DockerProvider, image: str, script: str) -> str:
    """Run a script in a sandbox of an image, and return what it said."""
    spec = replace(new_spec(provider.capabilities), image=image, fetch_image=False)
    async with await provider.create(spec) as sandbox:
        outcome = await sh(sandbox, script)
    await provider.destroy(spec.id)
    assert outcome.exit_code == 0, outcome
    return outcome.stdout.decode()


async def names(provider: DockerProvider) -> dict[str, Image]:
    """Return the images by name."""
    return {image.name: image for image in await provider.images()}


async def test_a_directory_becomes_an_image_and_what_it_holds_runs(provider: DockerProvider, tmp_path: Path) -> None:
    top = small_root(tmp_path / "small")
    image = await provider.add_image(ImageRequest(name="small", source=str(top)))
    assert (await names(provider))["small:latest"] == image
    assert image.origin == str(top)
    assert image.size_bytes > 100_000
    assert await said(provider, "small", "cat /etc/os-release") == "ID=small\n"
    await provider.remove_image("small")
    assert "small:latest" not in await names(provider)


@pytest.mark.parametrize("compression", ["", "gz", "xz"])
async def test_an_archive_becomes_an_image(provider: DockerProvider, tmp_path: Path, compression: str) -> None:
    archive = tar_of(small_root(tmp_path / "small"), tmp_path / f"small.tar{compression}", compression)
    await provider.add_image(ImageRequest(name="a/small:1", source=str(archive)))
    assert await said(provider, "a/small:1", "cat /etc/os-release") == "ID=small\n"


async def test_a_name_means_what_it_was_given_last_and_the_same_source_is_copied_once(
    provider: DockerProvider, tmp_path: Path
) -> None:
    top = small_root(tmp_path / "small")
    first = await provider.add_image(ImageRequest(name="small", source=str(top)))
    assert await said(provider, "small", "cat /etc/os-release") == "ID=small\n"
    again = await provider.add_image(ImageRequest(name="other:2", source=str(top)))
    assert again.content == first.content
    (top / "etc" / "os-release").write_text("ID=changed\n")
    assert (await provider.add_image(ImageRequest(name="small", source=str(top)))).content != first.content
    assert await said(provider, "small", "cat /etc/os-release") == "ID=changed\n"
    assert await said(provider, "other:2", "cat /etc/os-release") == "ID=small\n"


async def test_images_of_others_are_listed_and_neither_replaced_nor_removed(
    provider: DockerProvider, engine: Engine, tmp_path: Path
) -> None:
    assert (await names(provider))[engine.base].origin == "the container engine"
    with pytest.raises(InvalidRequestError, match="not removed: it did not come from"):
        await provider.remove_image(engine.base)
    with pytest.raises(InvalidRequestError, match="not replaced"):
        await provider.add_image(ImageRequest(name=engine.base, source=str(small_root(tmp_path / "small"))))
    with pytest.raises(InvalidRequestError, match="has none of this name"):
        await provider.remove_image("nosuch")
    assert json.loads(engine.run("inspect", engine.base))


@pytest.mark.parametrize("name", ["Upper", "a+b", "mcp-sandbox/ready:x", "a b", "", "x:", "-x", "x" * 300, "a//b:c:d"])
async def test_a_name_that_engines_do_not_take_is_refused(provider: DockerProvider, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="No image can be called"):
        await provider.add_image(ImageRequest(name=name, source=str(tmp_path)))


async def test_what_docker_save_wrote_is_for_docker_load(provider: DockerProvider, tmp_path: Path) -> None:
    layer = tar_of(small_root(tmp_path / "small"), tmp_path / "layer.tar").read_bytes()
    archive = tmp_path / "saved.tar"
    archive.write_bytes(docker_archive(layer))
    with pytest.raises(InvalidRequestError, match=r"docker load -i saved\.tar"):
        await provider.add_image(ImageRequest(name="saved", source=str(archive)))


@pytest.mark.timeout(300)
async def test_packages_become_an_image_whose_scripts_ran_in_a_container(
    provider: DockerProvider, engine: Engine
) -> None:
    if not isinstance(engine, Dockerd):
        pytest.skip("built once per run, in Docker")
    recipe = Recipe(distribution="debian", suite="bookworm", packages=("make",))
    try:
        with anyio.fail_after(280):
            image = await provider.add_image(ImageRequest(name="dev", recipe=recipe))
    except ProviderError as error:
        if "debootstrap said" not in str(error):
            raise
        pytest.skip(f"Debian's packages are out of reach: {error}")
    assert image.origin == "debian:bookworm with make"
    shown = await said(
        provider, "dev", "make --version | head -n 1; dpkg -l make | tail -n 1; ls -d /debootstrap || id -u"
    )
    assert shown.startswith("GNU Make")
    assert "\nii  make" in shown
    assert shown.endswith("1000\n")
    again = await provider.add_image(ImageRequest(name="dev2", recipe=recipe))
    assert again.content == image.content
    assert engine.run("ps", "--all", "--quiet").split() == []
