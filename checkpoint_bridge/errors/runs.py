"""Errors of runs, and of the agents that they are of."""

from __future__ import annotations

from perdure.checkpoint_bridge.errors.base import PerdureError


class AgentDriftError(PerdureError):
    """The agent that resumes differs from the one that started, and ``on_agent_drift="error"``."""

    code = "LOUSHO_AGENT_DRIFT"
    hint = 'Resume with the agent that started the run, or set on_agent_drift to "warn".'


class ResumeToolMissingError(PerdureError):
    """A call without a result names a tool that the agent no longer has."""

    code = "LOUSHO_RESUME_TOOL_MISSING"
    hint = "Give the agent the tool again, or reject the approval."
    _facts = ("tools",)

    def __init__(
        self,
        message: str,
        *,
        tools: list[str] | None = None,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.tools = tools or []


class PropagatingToolError(PerdureError):
    """Raise it in a tool to fail the run instead of giving the model an error result."""

    code = "LOUSHO_TOOL_EXECUTION_FAILED"
    hint = "The tool chose to fail the run; the session can be resumed."


class RunFailedError(PerdureError):
    """The run ended as Failed; its checkpoint is unfinished and can be resumed."""

    code = "PERDURE_RUN_FAILED"
    hint = "Read the run's failure in the Temporal UI, then resume the session."


class LimitReachedError(RunFailedError):
    """The turn reached a limit of its agent; ``code`` says which."""

    code = "turn_limit"
    hint = "Resume the session to go on with new limits."


class TurnInterruptedError(RunFailedError):
    """The turn lost its worker, and its agent does not continue such turns (``on_crash``)."""

    code = "interrupted"
    hint = "See session.ambiguous() for what may have happened, then send a new message."
