"""Asks the person through the client, in both eras of the protocol.

Until 2025-11-25 a server sends the question while the call waits. Since 2026-07-28 the call ends with the question, and
the client makes it again with the answer; the state that it brings back is a number that we drew, good for one
retry of exactly that call.
"""

import hashlib
import json
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import ValidationError

from mcp_sandbox.service.approval import Approval, Ask, Question

__all__ = ["Asking", "InputNeededError"]

ANSWER_S: Final = 120.0
"""How long a question waits for its answer."""
_MOST_QUESTIONS: Final = 10
_PERIOD_S: Final = 60.0
_MOST_WAITING: Final = 64
_INPUT_REQUIRED_SINCE: Final = "2026-07-28"
_NAME: Final = "decision"


class InputNeededError(Exception):
    """Ends a call with a question.

    Args:
        result: What the client gets in place of an answer.
    """

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("the person has to be asked first")
        self.result = result


@dataclass(frozen=True, slots=True)
class _Posed:
    bound: str
    until_s: float


class Asking:
    """The questions of one connection."""

    def __init__(self) -> None:
        self._posed: dict[str, _Posed] = {}
        self._asked_at: deque[float] = deque()

    def during(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> Ask:
        """Return what asks during one call."""

        async def ask(question: Question) -> Approval:
            capabilities = context.session.client_capabilities
            elicitation = capabilities.elicitation if capabilities is not None else None
            if elicitation is None or (elicitation.form is None and elicitation.url is not None):
                return Approval.CANNOT_ASK
            if context.protocol_version >= _INPUT_REQUIRED_SINCE:
                return self._by_retry(params, question)
            if not self._may_ask():
                return Approval.TOO_OFTEN
            return await _at_once(context, question)

        return ask

    def _by_retry(self, params: CallToolRequestParams, question: Question) -> Approval:
        """Return the answer that came with the call, if it is one to this question; else pose it."""
        now = time.monotonic()
        self._posed = {state: posed for state, posed in self._posed.items() if posed.until_s > now}
        bound = _bound(params, question)
        posed = self._posed.pop(params.request_state or "", None)
        answer = (params.input_responses or {}).get(_NAME)
        if posed is not None and secrets.compare_digest(posed.bound, bound) and isinstance(answer, ElicitResult):
            return _approval(answer, question)
        if not self._may_ask() or len(self._posed) >= _MOST_WAITING:
            return Approval.TOO_OFTEN
        state = secrets.token_urlsafe(32)
        self._posed[state] = _Posed(bound, now + ANSWER_S)
        form = ElicitRequestFormParams(message=question.text, requested_schema=_schema(question))
        raise InputNeededError(
            InputRequiredResult(input_requests={_NAME: ElicitRequest(params=form)}, request_state=state)
        )

    def _may_ask(self) -> bool:
        now = time.monotonic()
        while self._asked_at and now - self._asked_at[0] > _PERIOD_S:
            self._asked_at.popleft()
        if len(self._asked_at) >= _MOST_QUESTIONS:
            return False
        self._asked_at.append(now)
        return True


async def _at_once(context: ServerRequestContext[Any], question: Question) -> Approval:
    with anyio.move_on_after(ANSWER_S):
        try:
            answer = await context.session.elicit_form(
                question.text, _schema(question), related_request_id=context.request_id
            )
        except MCPError:  # it says that it can, and then does not
            return Approval.CANNOT_ASK
        except ValidationError:
            return Approval.NO_ANSWER
        return _approval(answer, question)
    return Approval.NO_ANSWER


def _schema(question: Question) -> dict[str, Any]:
    answer = {"type": "string", "title": "Decision", "enum": list(question.choices)}
    return {"type": "object", "properties": {_NAME: answer}, "required": [_NAME]}


def _approval(answer: ElicitResult, question: Question) -> Approval:
    if answer.action == "decline":
        return Approval.NO
    if answer.action != "accept":
        return Approval.NO_ANSWER
    said = (answer.content or {}).get(_NAME)
    return question.choices.get(said, Approval.NO) if isinstance(said, str) else Approval.NO


def _bound(params: CallToolRequestParams, question: Question) -> str:
    """Return what an answer is good for: this call and this question, byte for byte."""
    arguments: Mapping[str, Any] = params.arguments or {}
    call = json.dumps([params.name, arguments, question.digest], sort_keys=True)
    return hashlib.sha256(call.encode()).hexdigest()
