"""Small packages, and mirrors of them, as files by their path in the workspace."""

import base64
import hashlib
import io
import json
import tarfile
import zipfile

__all__ = ["MIRROR", "deb_sources", "npm_package", "npm_registry", "python_index", "python_wheel", "tar_of_files"]

MIRROR = """\
port=8765
python3 -m http.server --bind 127.0.0.1 --directory "$1" $port >/tmp/mirror.log 2>&1 &
server=$!
trap 'kill $server' EXIT
answers="import socket; socket.create_connection(('127.0.0.1', $port)).close()"
until python3 -c "$answers" 2>/dev/null; do sleep 0.05; done
"""
"""The beginning of a shell script that serves its first argument until it ends."""


def python_wheel(name: str = "greet") -> bytes:
    """Return a wheel of a package with a program."""
    facts = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": b"def main():\n    print('good day from python')\n",
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{facts}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{facts}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n".encode(),
    }
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}"
        for name, content in files.items()
    ]
    files[f"{facts}/RECORD"] = "\n".join([*lines, f"{facts}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return packed.getvalue()


def python_index() -> dict[str, bytes]:
    """Return an index as pip asks for it (PEP 503)."""
    name = "greet-1.0-py3-none-any.whl"
    page = f'<!doctype html><a href="../../{name}">{name}</a>'
    return {name: python_wheel(), "simple/greet/index.html": page.encode()}


def npm_package() -> bytes:
    """Return the archive of a package with a program."""
    described = {"name": "greet", "version": "1.0.0", "bin": {"greet-node": "cli.js"}}
    files = {
        "package/package.json": (json.dumps(described).encode(), 0o644),
        "package/cli.js": (b"#!/usr/bin/env node\nconsole.log('good day from node')\n", 0o755),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def npm_registry(url: str) -> dict[str, bytes]:
    """Return a registry that holds that package, for a server at `url`."""
    package = npm_package()
    version = {
        "name": "greet",
        "version": "1.0.0",
        "bin": {"greet-node": "cli.js"},
        "dist": {"tarball": f"{url}/files/greet-1.0.0.tgz", "shasum": hashlib.sha1(package).hexdigest()},
    }
    about = {"name": "greet", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    return {"greet": json.dumps(about).encode(), "files/greet-1.0.0.tgz": package}


def deb_sources() -> dict[str, bytes]:
    """Return the source of a Debian package with a maintainer script, and the script that makes a repository of it."""
    control = """\
Package: greet
Version: 1.0
Architecture: all
Maintainer: Nobody <nobody@example.org>
Depends: libc6
Description: says good day
"""
    configure = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
  useradd --system --home-dir /var/lib/greet --shell /usr/sbin/nologin greet
  install -d -o greet -g greet /var/lib/greet
  id -un > /var/lib/greet/configured-by
  invoke-rc.d greet start || true
fi
"""
    service = "#!/bin/sh\n### BEGIN INIT INFO\n# Provides: greet\n### END INIT INFO\ntouch /run/greet-started\n"
    script = """\
#!/bin/sh
set -e
cd /workspace
mkdir -p repository
chmod 755 package/DEBIAN/postinst package/usr/bin/greet-deb package/etc/init.d/greet
dpkg-deb --build --root-owner-group package repository/greet.deb >/dev/null
{
  cat package/DEBIAN/control
  echo "Filename: ./greet.deb"
  echo "Size: $(stat -c %s repository/greet.deb)"
  echo "SHA256: $(sha256sum repository/greet.deb | cut -d ' ' -f 1)"
} > repository/Packages
echo "deb [trusted=yes] copy:/workspace/repository ./" > /etc/apt/sources.list
rm -f /etc/apt/sources.list.d/*
"""
    return {
        "package/DEBIAN/control": control.encode(),
        "package/DEBIAN/postinst": configure.encode(),
        "package/usr/bin/greet-deb": b"#!/bin/sh\necho good day from debian\n",
        "package/etc/init.d/greet": service.encode(),
        "make-repository": script.encode(),
    }


def tar_of_files(files: dict[str, bytes]) -> bytes:
    """Pack files as a tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()
