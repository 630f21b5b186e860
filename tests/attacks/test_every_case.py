"""Every attack on the list has a test with its id in its name, or a reason why it has none yet."""

import re
import subprocess
import sys
from pathlib import Path

from tests.attacks.not_yet import NOT_YET

REPOSITORY = Path(__file__).parents[2]
WHERE = (
    "tests/attacks", "tests/interaction", "tests/conformance/test_local.py", "tests/manifest",
    "tests/cli/test_manifest.py", "tests/cli/test_setup.py",
)  # fmt: skip
"""What runs as root and as an ordinary user."""

NUMBERS = {
    "FS": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 19),  # host files
    "CR": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),  # environment and credentials
    "RES": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),  # resources and endless commands
    "PRIV": (1, 2, 3, 4, 5),  # privilege and the kernel
    "XS": (1, 2, 3),  # other sandboxes
    "FT": (1, 2, 3, 4, 5, 6, 7, 8),  # file tools
    "SNAP": (1, 2, 3, 4, 5, 6),  # snapshots
    "CRASH": (1, 2, 3, 4, 5),  # crashes and faults
    "CFG": (1, 2, 3, 4, 5, 6),  # configuration
    "CMD": (1, 2, 3, 4, 5),  # rules for commands
}
CASES = {f"{kind}-{number:02}" for kind, numbers in NUMBERS.items() for number in numbers}


def test_every_case_has_a_test_or_a_reason() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *WHERE],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stdout + listed.stderr
    names = [re.sub(r"\[.*", "", line).rpartition("::")[2] for line in listed.stdout.splitlines() if "::" in line]
    tested = {
        f"{kind.upper()}-{number}" for name in names for kind, number in re.findall(r"_([a-z]+)(\d\d)(?=_)", name)
    }
    assert CASES - tested - NOT_YET.keys() == set(), "neither a test nor a reason"
    assert NOT_YET.keys() & tested == set(), "there is a test, so the reason is over"
    assert NOT_YET.keys() - CASES == set(), "there is no such case"
    assert all("issue" in reason for reason in NOT_YET.values())
