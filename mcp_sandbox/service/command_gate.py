"""The gate in front of every command: rules decide, and where they cannot, the person does."""

from collections.abc import Mapping, Sequence

from anyio import Lock, to_thread

from mcp_sandbox.core.errors import PolicyDeniedError
from mcp_sandbox.policy.command_rules import CommandPolicy, Decision, judge
from mcp_sandbox.service.approval import MOST_CHARACTERS, Approval, Ask, CommandQuestion

__all__ = ["CommandGate"]


class CommandGate:
    """Knows what the person allowed for as long as the server runs, and never longer.

    Args:
        policies: What each layer of the configuration says.
        env: Variables of every command that nobody vouches for.
    """

    def __init__(self, policies: Sequence[CommandPolicy] = (), env: Sequence[str] = ()) -> None:
        self._env = tuple(env)
        self._policies = [policy for policy in policies if policy.decides]
        self._allowed: set[str] = set()
        self._asking = Lock()

    async def admit(
        self,
        command: str,
        *,
        cwd: str,
        sandbox: str,
        env: Mapping[str, str],
        ask: Ask | None,
        stdin: str | None = None,
        goes_on: bool = False,
    ) -> None:
        """Return if a command may run.

        Raises:
            PolicyDeniedError: It may not; says which rule has it, and what to do.
        """
        if not self._policies:
            return
        verdict = await to_thread.run_sync(judge, self._policies, command, (*self._env, *env))
        if verdict.decision is Decision.ALLOW:
            return
        if verdict.decision is Decision.DENY:
            raise _refused(
                f"{verdict.why}, says {verdict.layer}", "Do it another way, or tell the user, who can change the rule"
            )
        question = CommandQuestion(
            command=command, cwd=cwd, sandbox=sandbox, env=env, stdin=stdin, goes_on=goes_on, why=verdict.why,
            layer=verdict.layer,
        )  # fmt: skip
        async with self._asking:  # one question at a time, and none that the answer before makes needless
            if question.digest not in self._allowed:
                await self._ask(question, ask)

    async def _ask(self, question: CommandQuestion, ask: Ask | None) -> None:
        asked = f"{question.why}, and {question.layer} has the user asked"
        if not question.is_readable:
            raise _refused(
                f"{asked}, who cannot be shown more than {MOST_CHARACTERS:,} characters",
                "Put the text into a file first, or use shorter commands",
            )
        approval = Approval.CANNOT_ASK if ask is None else await ask(question)
        match approval:
            case Approval.ONCE:
                return
            case Approval.SESSION:
                self._allowed.add(question.digest)
            case Approval.CANNOT_ASK:
                raise _refused(
                    f"{asked}, which cannot be done here",
                    f"Do it another way, or have the user change the rule in {question.layer}",
                )
            case Approval.TOO_OFTEN:
                raise _refused(f"{asked}, who was asked too often just now", "Wait a minute, and ask for less")
            case Approval.NO_ANSWER:
                raise _refused(f"{asked}, who gave no answer", "Go on without it, or tell the user what it is for")
            case _:
                raise _refused(f"{asked}, who said no", "Do it another way; do not ask for the same again")


def _refused(why: str, fix: str) -> PolicyDeniedError:
    return PolicyDeniedError("The command was not run", why=why, fix=fix)
