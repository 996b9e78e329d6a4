"""Every error that perdure raises on purpose.

::

    PerdureError                        code, message, one-sentence hint
    |-- ConfigurationError              field: the option that is wrong
    |-- ClientClosedError
    |-- SessionIdInvalidError
    |-- SessionNotFoundError
    |-- SessionConflictError            the id belongs to something else, or another writer was here
    |   |-- SessionExistsError
    |   |-- SessionEndedError             it takes no more messages
    |   `-- SessionActiveError            it has not ended, so it is not deleted
    |-- SessionFormatUnsupportedError   the log is of another version of perdure
    |-- SessionLogCorruptError          the log is damaged
    |-- ForkBoundaryError               the place is none that a fork can begin behind
    |-- SessionAwaitingApprovalError    session_id, approval_id
    |-- SessionBusyError                session_id, admission: "rejected"
    |-- NotATurnError                   sequence
    |-- IdempotencyError                key
    |   |-- IdempotencyMismatchError    another request came under the key
    |   `-- IdempotencyAmbiguousError   a request under the key came, and nobody knows what it did
    |-- CheckpointNotFoundError         kept: the steps that a fork can start from
    |-- AgentDriftError
    |-- ResumeToolMissingError
    |-- ApprovalError
    |   |-- ApprovalNotFoundError
    |   `-- ApprovalDecidedError        decision: the one that counts
    |-- StorageError
    |   `-- LogConflictError
    |-- EntryStoreError                 a store of entries of the user's own raised
    |-- EncryptionKeyError              key_id
    |-- ProviderError                   status, retryable, retry_after
    |   |-- RateLimitedError
    |   `-- MissingApiKeyError
    |-- PropagatingToolError            raised by a tool to fail the run
    |-- RunFailedError                  the run ended as Failed for another reason
    |   |-- LimitReachedError           code model_call_limit or turn_time_limit
    |   `-- TurnInterruptedError        code interrupted: its worker was lost, and it does not go on
    `-- TemporalUnavailableError

Codes that start with ``LOUSHO_`` are those of the documented format (the list at the end of
its page); the others are ours. Programs branch on codes, so a code never changes.
"""

from __future__ import annotations

from perdure.checkpoint_bridge.errors.base import (
    ConfigurationError,
    PerdureError,
    error_from_wire,
)
from perdure.checkpoint_bridge.errors.requests import (
    ApprovalDecidedError,
    ApprovalError,
    ApprovalNotFoundError,
    IdempotencyAmbiguousError,
    IdempotencyError,
    IdempotencyMismatchError,
)
from perdure.checkpoint_bridge.errors.runs import (
    AgentDriftError,
    LimitReachedError,
    PropagatingToolError,
    ResumeToolMissingError,
    RunFailedError,
    TurnInterruptedError,
)
from perdure.checkpoint_bridge.errors.services import (
    ClientClosedError,
    EncryptionKeyError,
    EntryStoreError,
    LogConflictError,
    MissingApiKeyError,
    ProviderError,
    RateLimitedError,
    StorageError,
    TemporalUnavailableError,
)
from perdure.checkpoint_bridge.errors.sessions import (
    CheckpointNotFoundError,
    ForkBoundaryError,
    NotATurnError,
    SessionActiveError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionConflictError,
    SessionEndedError,
    SessionExistsError,
    SessionFormatUnsupportedError,
    SessionIdInvalidError,
    SessionLogCorruptError,
    SessionNotFoundError,
)

__all__ = [
    "AgentDriftError",
    "ApprovalDecidedError",
    "ApprovalError",
    "ApprovalNotFoundError",
    "CheckpointNotFoundError",
    "ClientClosedError",
    "ConfigurationError",
    "EncryptionKeyError",
    "EntryStoreError",
    "ForkBoundaryError",
    "IdempotencyAmbiguousError",
    "IdempotencyError",
    "IdempotencyMismatchError",
    "LimitReachedError",
    "LogConflictError",
    "MissingApiKeyError",
    "NotATurnError",
    "PerdureError",
    "PropagatingToolError",
    "ProviderError",
    "RateLimitedError",
    "ResumeToolMissingError",
    "RunFailedError",
    "SessionActiveError",
    "SessionAwaitingApprovalError",
    "SessionBusyError",
    "SessionConflictError",
    "SessionEndedError",
    "SessionExistsError",
    "SessionFormatUnsupportedError",
    "SessionIdInvalidError",
    "SessionLogCorruptError",
    "SessionNotFoundError",
    "StorageError",
    "TemporalUnavailableError",
    "TurnInterruptedError",
    "error_from_wire",
]
