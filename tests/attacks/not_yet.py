"""Attacks that cannot be played yet, because what they attack does not exist; each with the issue that brings it."""

from collections.abc import Mapping
from typing import Final

__all__ = ["NOT_YET", "OPEN"]

NOT_YET: Final[Mapping[str, str]] = {
    "CR-10": "there are no secrets yet, and so no placeholders: issue 6",
    "XS-02": "there is one principal over stdio, and no HTTP yet: issue 7",
    "CMD-02": "no program can be taken out of the view yet: issue 5 (`commands.remove`)",
    "CRASH-02": "there is no egress process yet: issue 6",
    "CRASH-03": "there is neither a daemon nor a remote engine yet: issues 4 and 8",
}

_ONE_USER = "without user namespaces the users of all containers are one user of the host, and share what it may have"
_NAMELESS = "its processes have no names on the host, which the test looks for"
OPEN: Final[Mapping[str, Mapping[str, str]]] = {
    "docker": {
        "test_watches_of_one_sandbox_leave_some_to_others_and_to_the_host": _ONE_USER,
        "test_signals_under_way_in_one_sandbox_leave_timers_to_others_and_to_the_host": _ONE_USER,
        "test_a_deep_tree_is_copied_restored_and_removed[docker-3000]": "refused: engines lose such paths",
        "test_terminals_of_one_sandbox_leave_some_to_others": "engines mount /dev/pts without a maximum of its own",
    },
    "gvisor": {
        "test_a_process_whose_first_thread_is_gone_is_killed_with_its_command": "gVisor shows none of its threads",
        "test_a_program_that_somebody_holds_a_lease_on_holds_nobody_else_up": "cannot begin: gVisor has no leases",
        "test_a_command_that_is_traced_dies_all_the_same": "cannot begin: only parents trace there",
        "test_cr07_fs07_agents_buses_and_sockets_of_the_host_are_absent": "the keyrings inside are gVisor's own",
        "test_res07_a_deadline_ends_what_sleeps_and_what_spins_and_keeps_what_was_said": _NAMELESS,
        "test_res09_a_daemon_holds_no_call_up_and_ends_with_its_sandbox": _NAMELESS,
    },
}
"""Tests of attacks that still succeed on a provider, or cannot be played there, and why."""
