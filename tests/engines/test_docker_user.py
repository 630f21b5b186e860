"""Who commands are, for images of every kind."""

import pytest

from mcp_sandbox.engines.docker_user import choose_user, with_entries

__all__: list[str] = []

DEBIAN = b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
NODE = DEBIAN + b"node:x:1000:1000::/home/node:/bin/bash\n"
APP = DEBIAN + b"app:x:10001:20001::/opt/app:/bin/sh\n"


@pytest.mark.parametrize(
    ("image_user", "passwd", "expected"),
    [
        ("", None, (1000, 1000, "sandbox", "/home/sandbox", False)),
        ("", DEBIAN, (1000, 1000, "sandbox", "/home/sandbox", False)),
        ("root", NODE, (1000, 1000, "node", "/home/node", True)),
        ("0:0", b"", (1000, 1000, "sandbox", "/home/sandbox", False)),
        ("app", APP, (10001, 20001, "app", "/opt/app", True)),
        ("10001", APP, (10001, 20001, "app", "/opt/app", True)),
        ("4242", DEBIAN, (4242, 4242, "sandbox", "/home/sandbox", False)),
        ("nobody", DEBIAN, (65534, 65534, "nobody", "/home/nobody", True)),
        ("unknown", DEBIAN, (1000, 1000, "sandbox", "/home/sandbox", False)),
        ("", b"\xff:x:a:b\nsandbox:x:7:7::/:/bin/sh\n", (1000, 1000, "sandbox-1000", "/home/sandbox-1000", False)),
    ],
)
def test_the_user_is_the_images_own_or_an_ordinary_one_and_never_root(
    image_user: str, passwd: bytes | None, expected: tuple[int, int, str, str, bool]
) -> None:
    user = choose_user(image_user, passwd)
    assert (user.uid, user.gid, user.name, user.home, user.known) == expected


def test_the_owner_of_a_mounted_project_is_taken_whoever_the_image_names() -> None:
    user = choose_user("app", APP, (1234, 5678))
    assert (user.uid, user.gid, user.name) == (1234, 5678, "sandbox")


def test_a_user_whom_the_image_does_not_know_is_added_and_nobody_goes() -> None:
    user = choose_user("", DEBIAN.rstrip(b"\n"))
    tables = dict(with_entries(user, DEBIAN.rstrip(b"\n"), b"root:x:0:\n"))
    assert tables["etc/passwd"] == DEBIAN + b"sandbox:x:1000:1000::/home/sandbox:/bin/sh\n"
    assert tables["etc/group"] == b"root:x:0:\nsandbox:x:1000:\n"
    assert dict(with_entries(choose_user("", NODE), NODE, None)) == {}


def test_an_image_of_nothing_gets_tables() -> None:
    tables = dict(with_entries(choose_user("", None), None, None))
    assert [line.split(b":")[0] for line in tables["etc/passwd"].splitlines()] == [b"root", b"sandbox"]
