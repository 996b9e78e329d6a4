r"""The tables of the store.

Every table starts with ``perdure_``, so that the store can live in a database that
an application has already. JSON is kept as ASCII text (``\uXXXX`` escapes), since PostgreSQL
takes neither NUL nor lone surrogates, which model output holds.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from perdure.checkpoint_bridge.tables.sealing import DigestText, SealedText

SCHEMA_REVISION = "0001"
"""Head of the migrations; a test compares it with the folder."""

VERSION_TABLE = "perdure_schema_version"

metadata = MetaData()

_IS_REF = text("ref IS NOT NULL")
_AutoId = BigInteger().with_variant(Integer, "sqlite")

logs = Table(
    "perdure_logs",
    metadata,
    Column("id", _AutoId, primary_key=True, autoincrement=True),
    Column("uid", String(32), nullable=False, unique=True, doc="Random; part of idempotency keys."),
    Column(
        "parent_id",
        BigInteger,
        ForeignKey("perdure_logs.id"),
        nullable=True,
        index=True,
        doc="The log whose beginning this one shares (a fork).",
    ),
    Column("inherited", BigInteger, nullable=False, doc="Events that are the parent's."),
    Column(
        "older_id",
        BigInteger,
        ForeignKey("perdure_logs.id"),
        nullable=True,
        index=True,
        doc="The log in an older format that this one was made of.",
    ),
    sqlite_autoincrement=True,
)

sessions = Table(
    "perdure_sessions",
    metadata,
    Column("session_id", String(200), primary_key=True),
    Column("log_id", BigInteger, ForeignKey("perdure_logs.id"), nullable=False, unique=True),
    Column("head", BigInteger, nullable=False, doc="Events in the log: the next event's seq."),
    Column("writer", String(64), nullable=True, doc="The run that may append."),
    Column("agent", String(200), nullable=False),
    Column("title", SealedText, nullable=False, doc="Start of the first user message."),
    Column("created_at", BigInteger, nullable=False, doc="Unix milliseconds, as all times."),
    Column("updated_at", BigInteger, nullable=False),
    Column("has_checkpoint", Boolean, nullable=False, doc="False after a delete of it alone."),
    Column("status", String(32), nullable=False, doc="Status of the newest save."),
    Column("step", Integer, nullable=False),
    Column("approval_id", String(128), nullable=True),
    Column("parent_session", String(200), nullable=True),
    Column(
        "last_end",
        SealedText,
        nullable=True,
        doc="JSON of how the last run ended; null: it is open.",
    ),
    Column("version", Integer, nullable=False, doc="Format of the log."),
    Column("phase", String(16), nullable=False, doc="open, ending or ended."),
    Column("header", SealedText, nullable=False, doc="JSON of what never changes; see headers.py."),
    Column("turn_sequence", BigInteger, nullable=False, doc="Of the newest turn/start; 0: none."),
    Column("emitted", BigInteger, nullable=False, doc="Bytes that tools emitted in this turn."),
    Column("followed_until", BigInteger, nullable=False, doc="Until then appends are told."),
    Index("perdure_sessions_by_activity", "updated_at"),
)

events = Table(
    "perdure_events",
    metadata,
    Column("log_id", BigInteger, ForeignKey("perdure_logs.id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("type", String(64), nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("data", SealedText, nullable=False),
    Column("ref", DigestText(64), nullable=True, doc="Digest of the message, when it is a blob."),
    Column("digest", DigestText(64), nullable=False, doc="Of type, data and message; not of time."),
    # KIND:SEQUENCE of the execution that it is from; of what a tool emits also :ATTEMPT.NUMBER.
    Column("origin", String(32), nullable=True),
    Column("ignorable", Boolean, nullable=False, doc="Who does not know the type may skip it."),
    Index("perdure_events_by_ref", "ref", sqlite_where=_IS_REF, postgresql_where=_IS_REF),
)

blobs = Table(
    "perdure_blobs",
    metadata,
    Column("digest", DigestText(64), primary_key=True, doc="SHA-256 of content, hex."),
    Column("size", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False, doc="Or when it was last stored again."),
    # Last, so that SQLite finds the others without walking through megabytes.
    Column("content", SealedText, nullable=False),
)

inputs = Table(
    "perdure_inputs",
    metadata,
    Column("session_id", String(200), primary_key=True),
    Column("digest", DigestText(64), primary_key=True, index=True, doc="Of a blob."),
    Column("created_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Names large input from before its run opens until its session goes."""

saves = Table(
    "perdure_saves",
    metadata,
    Column("log_id", BigInteger, ForeignKey("perdure_logs.id"), primary_key=True),
    Column("through_seq", BigInteger, primary_key=True, doc="Events that the save covers."),
    Column("step", Integer, nullable=False),
    Column("status", String(32), nullable=False),
    Column("finish_reason", String(64), nullable=False),
    Column("approval_id", String(128), nullable=True),
    Column("saved_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

effects = Table(
    "perdure_effects",
    metadata,
    Column("log_id", BigInteger, ForeignKey("perdure_logs.id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, doc="Place of the turn in the log."),
    Column("call_index", Integer, primary_key=True, doc="-1: the model call itself."),
    Column("name", String(200), nullable=False),
    Column("starts", Integer, nullable=False, doc="How often it was begun."),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger, nullable=True, doc="Set when the outcome is here."),
    Column("outcome", SealedText, nullable=True, doc="JSON, without the message."),
    Column("message", SealedText, nullable=True, doc="Unless the log has it."),
    Column("ref", DigestText(64), nullable=True),
    Column("attempts", SealedText, nullable=False, doc="Failed attempts, a JSON list."),
    Index("perdure_effects_by_ref", "ref", sqlite_where=_IS_REF, postgresql_where=_IS_REF),
    sqlite_with_rowid=False,
)

approvals = Table(
    "perdure_approvals",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("log_id", BigInteger, ForeignKey("perdure_logs.id"), nullable=False, index=True),
    Column("session_id", String(200), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("call_index", Integer, nullable=False),
    Column("pending", SealedText, nullable=False, doc="PendingApproval of the documented format."),
    Column("created_at", BigInteger, nullable=False),
    Column("decided_at", BigInteger, nullable=True, index=True),
    Column("decision", SealedText, nullable=True, doc="{approved, note?, by?} or {closed}."),
)

mirrors = Table(
    "perdure_mirrors",
    metadata,
    Column("name", String(200), primary_key=True, doc="Names the store that is written to."),
    Column("session_id", String(200), primary_key=True),
    Column("log_id", BigInteger, nullable=False, doc="Of a session begun anew: of the old one."),
    Column("through_seq", BigInteger, nullable=False, doc="Of the newest save that is there."),
    sqlite_with_rowid=False,
)

mirror_leases = Table(
    "perdure_mirror_leases",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("owner", String(64), nullable=False, doc="Who alone writes to the mirror."),
    Column("until_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

claims = Table(
    "perdure_claims",
    metadata,
    Column("scope", String(240), primary_key=True, doc="What is done, and to which session."),
    Column("key", String(255), primary_key=True, doc="The caller's idempotency key."),
    Column("request_hash", DigestText(64), nullable=False),
    Column("state", String(16), nullable=False, doc="taken or completed."),
    Column("response", SealedText, nullable=True, doc="JSON, once the request is completed."),
    Column("claimed_at", BigInteger, nullable=False),
    Column("completed_at", BigInteger, nullable=True, index=True, doc="Kept for 24 h from here."),
)

identity = Table(
    "perdure_identity",
    metadata,
    Column("id", String(32), primary_key=True, doc="Random; copies of the store share it."),
    sqlite_with_rowid=False,
)

keys = Table(
    "perdure_keys",
    metadata,
    Column("key_id", String(64), primary_key=True, doc="A key that content is encrypted with."),
    Column("sealed", Text, nullable=False, doc="The key of the digests, sealed by this key."),
    sqlite_with_rowid=False,
)
