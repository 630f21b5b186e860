"""`mcp-sandbox image`: build, import, list and remove what sandboxes can start from instead of the host's programs."""

import argparse
import sys
from collections.abc import Awaitable
from dataclasses import asdict

from anyio import to_thread

from mcp_sandbox.app import DEFAULT_PROVIDER
from mcp_sandbox.cli.options import add_json
from mcp_sandbox.cli.running import run
from mcp_sandbox.cli.tables import print_json, print_table
from mcp_sandbox.cli.verbs import Verb, read_verb
from mcp_sandbox.cli.wording import for_people
from mcp_sandbox.core.errors import SandboxError
from mcp_sandbox.core.image import Image, ImageRequest
from mcp_sandbox.core.provider import Provider
from mcp_sandbox.service.images import existing, recipe_of, suggested_name
from mcp_sandbox.service.quantities import age, size

__all__ = ["main"]

_EXAMPLE = """\
  mcp-sandbox image build --from debian:bookworm --packages git,python3 --name dev
  docker save python:3.12-slim -o py.tar && mcp-sandbox image import py.tar --name py
  mcp-sandbox exec --image py -- python3 -V
  mcp-sandbox serve --image dev

A sandbox from an image sees nothing of this machine but the project. What a name
means is copied once; sandboxes share it, and keep it when the name is removed."""


def main(arguments: list[str]) -> int:
    """Carry out one of the verbs."""
    summary = "Build, import, list and remove images."
    verb, options = read_verb("image", summary, _EXAMPLE, _VERBS, _add_provider, arguments)
    options.project = None
    return run(
        options,
        lambda sandboxes: _on_provider(sandboxes.provider(options.provider or DEFAULT_PROVIDER), verb, options),
    )


def _add_provider(reader: argparse.ArgumentParser) -> None:
    reader.add_argument("--provider", metavar="NAME", help="whose images these are (default: local)")


async def _on_provider(opening: Awaitable[Provider], verb: Verb[Provider], options: argparse.Namespace) -> int:
    return await verb.carry_out(await opening, options)


def _build_options(reader: argparse.ArgumentParser) -> None:
    reader.add_argument("--from", dest="system", metavar="SYSTEM", required=True, help="debian:SUITE or ubuntu:SUITE")
    reader.add_argument("--packages", metavar="A,B", default="", help="beside the smallest system, which has apt")
    reader.add_argument("--mirror", metavar="URL", default="", help="where packages come from")
    reader.add_argument("--name", metavar="N", help="what to call it (default: SYSTEM-A-B)")
    reader.add_argument("--fresh", action="store_true", help="build it again, with today's packages")


async def _build(provider: Provider, options: argparse.Namespace) -> int:
    recipe = recipe_of(options.system, options.packages, options.mirror)
    name = options.name or "-".join([options.system, *(name.replace("+", "") for name in recipe.packages)])
    print("mcp-sandbox: building; this takes a minute unless it was built before", file=sys.stderr)
    return _told(await provider.add_image(ImageRequest(name=name, recipe=recipe, fresh=options.fresh)))


def _import_options(reader: argparse.ArgumentParser) -> None:
    reader.add_argument(
        "path", help="a directory with a root file system; a tar of one; what `docker save` wrote; also compressed"
    )
    reader.add_argument("--name", metavar="N", help="what to call it (default: the file's name)")


async def _import(provider: Provider, options: argparse.Namespace) -> int:
    source = await to_thread.run_sync(existing, options.path)
    name = options.name or suggested_name(source)
    return _told(await provider.add_image(ImageRequest(name=name, source=str(source), fresh=True)))


def _told(image: Image) -> int:
    for note in image.notes:
        print(f"mcp-sandbox: {note}", file=sys.stderr)
    print(image.name)
    return 0


async def _list(provider: Provider, options: argparse.Namespace) -> int:
    images = await provider.images()
    if options.json:
        print_json([{name: value for name, value in asdict(image).items() if name != "notes"} for image in images])
    elif not images:
        print("No images yet. `mcp-sandbox image build --from debian:bookworm` makes one; --help shows more.")
    else:
        rows = [(image.name, size(image.size_bytes), age(image.created_at), image.origin) for image in images]
        print_table(("IMAGE", "SIZE", "AGE", "FROM"), rows)
    return 0


def _rm_options(reader: argparse.ArgumentParser) -> None:
    reader.add_argument("name", nargs="+", help="as `image list` shows it")


async def _rm(provider: Provider, options: argparse.Namespace) -> int:
    status = 0
    for name in options.name:
        try:
            await provider.remove_image(name)
            print(name)
        except SandboxError as error:
            print(f"mcp-sandbox: {for_people(error)}", file=sys.stderr)
            status = 2
    return status


_VERBS: dict[str, Verb[Provider]] = {
    "build": Verb(
        "build one from a distribution's packages, with debootstrap", "build --from debian:bookworm --packages git",
        _build_options, _build,
    ),
    "import": Verb("copy a directory or an archive", "import rootfs.tar.gz --name mine", _import_options, _import),
    "list": Verb("list images", "list --json", add_json, _list),
    "rm": Verb("forget images; sandboxes that started from them go on", "rm mine", _rm_options, _rm),
}  # fmt: skip
