"""The first schema."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a store is never taken back to an older version."""
    op.create_table(
        "perdure_blobs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    identity = op.create_table(
        "perdure_identity",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_with_rowid=False,
    )
    op.bulk_insert(identity, [{"id": uuid.uuid4().hex}])
    op.create_table(
        "perdure_inputs",
        sa.Column("session_id", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "digest"),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_perdure_inputs_digest"), "perdure_inputs", ["digest"], unique=False)
    op.create_table(
        "perdure_keys",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "perdure_logs",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("parent_id", sa.BigInteger(), nullable=True),
        sa.Column("inherited", sa.BigInteger(), nullable=False),
        sa.Column("older_id", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["older_id"],
            ["perdure_logs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"],
            ["perdure_logs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("uid"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_perdure_logs_older_id"), "perdure_logs", ["older_id"], unique=False)
    op.create_index(op.f("ix_perdure_logs_parent_id"), "perdure_logs", ["parent_id"], unique=False)
    op.create_table(
        "perdure_approvals",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("log_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.String(length=200), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("call_index", sa.Integer(), nullable=False),
        sa.Column("pending", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["log_id"],
            ["perdure_logs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        op.f("ix_perdure_approvals_decided_at"), "perdure_approvals", ["decided_at"], unique=False
    )
    op.create_index(
        op.f("ix_perdure_approvals_log_id"), "perdure_approvals", ["log_id"], unique=False
    )
    op.create_table(
        "perdure_effects",
        sa.Column("log_id", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("call_index", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("ref", sa.String(length=64), nullable=True),
        sa.Column("attempts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["log_id"],
            ["perdure_logs.id"],
        ),
        sa.PrimaryKeyConstraint("log_id", "seq", "call_index"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "perdure_effects_by_ref",
        "perdure_effects",
        ["ref"],
        unique=False,
        sqlite_where=sa.text("ref IS NOT NULL"),
        postgresql_where=sa.text("ref IS NOT NULL"),
    )
    op.create_table(
        "perdure_events",
        sa.Column("log_id", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("time_ms", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("ref", sa.String(length=64), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("origin", sa.String(length=32), nullable=True),
        sa.Column("ignorable", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["log_id"],
            ["perdure_logs.id"],
        ),
        sa.PrimaryKeyConstraint("log_id", "seq"),
    )
    op.create_index(
        "perdure_events_by_ref",
        "perdure_events",
        ["ref"],
        unique=False,
        sqlite_where=sa.text("ref IS NOT NULL"),
        postgresql_where=sa.text("ref IS NOT NULL"),
    )
    op.create_table(
        "perdure_claims",
        sa.Column("scope", sa.String(length=240), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=False),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("scope", "key"),
    )
    op.create_index(
        op.f("ix_perdure_claims_completed_at"), "perdure_claims", ["completed_at"], unique=False
    )
    op.create_table(
        "perdure_mirror_leases",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "perdure_mirrors",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("session_id", sa.String(length=200), nullable=False),
        sa.Column("log_id", sa.BigInteger(), nullable=False),
        sa.Column("through_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", "session_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "perdure_saves",
        sa.Column("log_id", sa.BigInteger(), nullable=False),
        sa.Column("through_seq", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("finish_reason", sa.String(length=64), nullable=False),
        sa.Column("approval_id", sa.String(length=128), nullable=True),
        sa.Column("saved_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["log_id"],
            ["perdure_logs.id"],
        ),
        sa.PrimaryKeyConstraint("log_id", "through_seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "perdure_sessions",
        sa.Column("session_id", sa.String(length=200), nullable=False),
        sa.Column("log_id", sa.BigInteger(), nullable=False),
        sa.Column("head", sa.BigInteger(), nullable=False),
        sa.Column("writer", sa.String(length=64), nullable=True),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("has_checkpoint", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("approval_id", sa.String(length=128), nullable=True),
        sa.Column("parent_session", sa.String(length=200), nullable=True),
        sa.Column("last_end", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("header", sa.Text(), nullable=False),
        sa.Column("turn_sequence", sa.BigInteger(), nullable=False),
        sa.Column("emitted", sa.BigInteger(), nullable=False),
        sa.Column("followed_until", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["log_id"],
            ["perdure_logs.id"],
        ),
        sa.PrimaryKeyConstraint("session_id"),
        sa.UniqueConstraint("log_id"),
    )
    op.create_index(
        "perdure_sessions_by_activity", "perdure_sessions", ["updated_at"], unique=False
    )
