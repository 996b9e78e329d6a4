"""Which test shows which promise: the table of ``docs/features.md``, and what it is made of.

The rows are those of the project's list of features, by number. A test named ``test_f35_...``
shows row 35; for rows that were shown before there was that habit, :data:`SHOWN_BY` names them.

    python -m tests.features            print the rows that no test shows
    python -m tests.features --write    write docs/features.md
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "features.md"

FEATURES = {
    1: "Session = one logical conversation under a caller-chosen id",
    2: "Create is idempotent under a key",
    3: "Seed a new session with prior messages",
    4: "List sessions newest activity first, without reading transcripts",
    5: "Open an existing session; unknown id throws",
    6: "Continue in the last tool mode; session-scoped approvals persist",
    7: "Read the record of an open session",
    8: "Session header beside the log; delegation depth",
    9: "interrupt(): cancel the turn, keep the session",
    10: "end(): refuse new messages, keep history",
    11: "delete(): only ended or failed; removes everything",
    12: "Failed teardown: record remains, explicit retry only",
    13: "Start over under the same id",
    14: "Idle suspension (idleTtlMs), session stays readable",
    15: "Session lifecycle notifications",
    16: "Append-only typed log is the single source of truth",
    17: "Contiguous sequence; (sessionId, sequence) names a record",
    18: "Event envelope",
    19: "Core vocabulary",
    20: "Cross-language entry types",
    21: "Turn end reasons and step boundaries",
    22: "request/header: every request reconstructible",
    23: "Crash and power safety of committed events",
    24: "Commit before effect",
    25: "Send once (no automatic retry of effects)",
    26: "transcript_delta / kv_set / kv_delete",
    27: "Independent saves: a failed turn keeps completed writes",
    28: "Event origin",
    29: "Custom extension events",
    30: "ignorable marker / unknown event refusal",
    31: "Failed attempts stay in the log and in the bill, not in history",
    32: "deriveMessages(): pure, repeatable, cached, immutable",
    33: "Surface types and projection rules",
    34: "Compaction by replace",
    35: "Saved transcript with its position",
    36: "Loop decides which observations the model sees",
    37: "Turns excluded from the next request",
    38: "History budget drops oldest turns; newest always sent",
    39: "The provider always receives a valid transcript",
    40: "Input merge rules (re-sent history, retry, system messages)",
    41: "Cross-session memory",
    42: "send(): run a turn and wait",
    43: "submit(): returns the committed turn_started sequence",
    44: "outcome(sequence): pending / ended / failed; idle is not success",
    45: "Busy session rejects another submission",
    46: "New input into an unfinished run",
    47: "Finished run continues as a conversation",
    48: "maxSteps budget spans resumes",
    49: "Turn, model-call and tool limits",
    50: "Live-only data: token deltas, telemetry",
    51: "Provider/tool errors surface as failed turn, state kept",
    52: "Checkpoint content",
    53: "When checkpoints are written, and status",
    54: "businessState is opaque and carried over",
    55: "Bounded checkpoint history ring, prune()",
    56: "history(sessionId, {limit}) newest first",
    57: "history() is optional on a store",
    58: "delete clears checkpoint and history, unless keepHistory",
    59: "Replaceable stores with one contract",
    60: "One-option wiring",
    61: "Survive crash, restart, abort, days-long approval",
    62: "Resume runs exactly the missing tool calls first, without the model",
    63: "A recorded result is never re-executed",
    64: "A checkpointed model turn is never generated again",
    65: "Every tool call gets exactly one result, in call order",
    66: "Usage continues across resumes",
    67: "Interrupted turn is closed with a synthetic 'interrupted'",
    68: "First access after restart records the interrupted turn as failed; never reruns it",
    69: "Ambiguous effect",
    70: "agent.resume / session.resume / pending / discardPending",
    71: "Graceful shutdown drains; forced stop may leave partial progress",
    72: "At-least-once with toolCallId as idempotency key",
    73: "Never re-run: ambiguous failure",
    74: "Ask a human about an uncertain call",
    75: "Tool failure kinds",
    76: "Validation failure is a result, not a crash",
    77: "Tool concurrency",
    78: "Three tool phases: emitted result, return, completion",
    79: "Background tools outlive the turn and can wake the loop",
    80: "Environment turn-end cleanup after the answer",
    81: "Missing tool on resume is always an error",
    82: "needsApproval pauses the run (days, other process)",
    83: "Pending approval cannot be bypassed",
    84: "Mid-batch approval order; structured rejection",
    85: "Chained approvals",
    86: "Resolve by exactly one decision",
    87: "List pending approvals",
    88: "Sub-agent approvals pause the parent",
    89: "Approve for the session",
    90: "Fork at a step; budget and usage carried",
    91: "Patch order and meaning",
    92: "Fork of an awaiting-approval entry gates again",
    93: "Fork ids",
    94: "Missing step",
    95: "Fork at a stable log boundary; many forks in parallel",
    96: "Inherited prefix is marked and immutable",
    97: "compareTrajectories(a, b)",
    98: "Agent fingerprint in every checkpoint and approval snapshot",
    99: "onAgentDrift: warn / error / ignore (no fingerprint = no check)",
    100: "Run config and instructions pinned to the run",
    101: "Format version; unsupported differs from corrupt",
    102: "Migration chain",
    103: "Stored-data compatibility",
    104: "events(after): committed, in order, consumer owns cursor",
    105: "Page bounds",
    106: "SSE: catch up, then follow",
    107: "Idempotency keys on mutating requests, 24 h",
    108: "Bearer authentication",
    109: "client.close() and withToken()",
    110: "Content stays in the user's store; protection is stated",
    111: "SessionStore contract",
    112: "Retention: newest 50 sessions per agent, none older than 90 days",
}

LATER = {
    12: "there are no environments yet",
    14: "there are no environments yet; a run that waits costs nothing",
    50: "token deltas come later; without a sink no telemetry is stored",
    78: "tools that go on in the background come later",
    79: "tools that go on in the background come later",
    80: "there are no environments yet",
    100: (
        "agents that choose their model at run time come later; instructions are in the transcript"
    ),
    106: (
        "an HTTP server with server-sent events comes later; `session.stream()` is what it "
        "will stand on"
    ),
    108: "an HTTP server comes later",
}
"""Rows that are not there yet, and why; nothing else may be missing."""

SHOWN_BY = {
    1: "test_a_finished_session_goes_on test_an_invalid_session_id",
    4: "test_sessions_newest_activity_first test_the_list_reads_no_log",
    13: "test_a_deleted_session_can_begin_anew",
    17: "test_events_are_numbered_without_gaps",
    23: "test_a_killed_writer_leaves_whole_appends",
    24: "test_a_full_disk_is_waited_for",
    40: (
        "test_new_session_messages test_history_that_is_sent_again_is_recognised "
        "test_system_messages_in_input_are_dropped"
    ),
    46: (
        "test_input_comes_after_the_results_of_pending_calls test_r8_queued_input_survives_a_pause"
    ),
    47: (
        "test_a_finished_session_goes_on "
        "test_a_fresh_run_counts_from_zero_and_keeps_the_conversation"
    ),
    48: "test_steps_left_are_what_the_run_had test_steps_run_out",
    51: (
        "test_a_first_call_that_fails_leaves_a_session_to_resume "
        "test_a_failed_run_says_how_it_goes_on"
    ),
    52: "test_two_tools_then_an_answer test_a_record_comes_back_from_its_text",
    53: "test_two_tools_then_an_answer test_approval_in_the_middle_of_a_batch test_steps_run_out",
    54: "test_business_state test_a_state_that_was_cleared_is_not_one_that_was_never_set",
    55: (
        "test_the_ring_keeps_the_newest test_a_limit_that_is_no_count_is_refused "
        "test_prune_drops_old_entries_and_no_checkpoint"
    ),
    56: (
        "test_one_entry_for_each_save_newest_first test_a_limit_gives_the_newest "
        "test_an_unknown_session_has_an_empty_history"
    ),
    57: "test_a_store_of_three_methods_has_none test_a_store_without_a_history_cannot_fork",
    58: "test_the_history_goes_with_the_checkpoint test_a_history_that_is_kept_grows_on",
    59: (
        "test_what_was_saved_is_loaded test_many_saves_of_many_sessions_at_once "
        "test_a_damaged_history_is_empty_and_built_anew "
        "test_a_crash_between_writes_leaves_a_store_that_reads"
    ),
    60: "test_an_unfinished_run_is_resumed test_resume_of_what_is_not_pending",
    61: (
        "test_a_run_whose_worker_is_killed_ends_as_if_nothing_had_happened "
        "test_random_faults_change_no_run"
    ),
    62: (
        "test_exactly_the_missing_call_of_an_interrupted_turn_runs "
        "test_a_conversation_that_ends_in_calls"
    ),
    63: (
        "test_the_first_outcome_stays "
        "test_a_run_whose_worker_is_killed_ends_as_if_nothing_had_happened"
    ),
    64: (
        "test_random_faults_change_no_run "
        "test_a_run_whose_worker_is_killed_ends_as_if_nothing_had_happened"
    ),
    65: "test_r21_results_are_in_call_order_though_they_end_in_reverse test_r12_at_any_moment",
    66: "test_r17_usage_survives_what_happens_to_a_run",
    71: ("test_what_a_stopping_worker_gives_up_is_done_by_the_next_one"),
    72: (
        "test_r15_keys_differ_for_all_calls "
        "test_a_run_whose_worker_is_killed_ends_as_if_nothing_had_happened"
    ),
    73: (
        "test_a_call_that_must_not_run_twice_has_an_unknown_outcome "
        "test_a_call_that_provably_never_began_runs_whatever_its_recovery"
    ),
    74: (
        "test_a_person_is_asked_and_lets_it_run_again test_a_person_gives_up "
        "test_a_person_supplies_the_verified_result"
    ),
    75: (
        "test_a_tool_that_raises test_r34_deadlines test_r1_r12_during_an_async_tool "
        "test_a_call_that_must_not_run_twice_has_an_unknown_outcome"
    ),
    76: "test_r6_arguments_that_do_not_fit",
    77: "test_concurrency_is_bounded",
    81: "test_a_pending_call_whose_tool_is_gone test_r22_a_missing_tool_cannot_be_approved",
    82: (
        "test_the_client_decides test_a_decision_waits_for_a_worker "
        "test_a_predicate_on_the_validated_arguments"
    ),
    83: "test_r8_a_pause_takes_no_input test_a_pause_whose_run_is_lost_takes_no_input",
    84: (
        "test_approval_in_the_middle_of_a_batch "
        "test_a_rejection_is_a_result_and_the_rest_runs "
        "test_r29_a_rejection_is_one_result_with_its_reason"
    ),
    85: "test_two_gated_calls_are_two_approvals test_r3_gated_calls_among_others_in_every_order",
    86: "test_r9_twenty_decisions_at_once test_r9_an_unknown_id test_r9_a_decided_id",
    87: "test_r13_the_list_needs_only_the_store test_what_waits_oldest_first",
    90: "test_fork_at_step_1_with_another_weather test_the_newest_entry_of_the_step_counts",
    91: "test_the_patch_is_applied_in_order test_a_patch_that_does_not_fit",
    92: (
        "test_r27_a_fork_from_before_an_approval_asks_again "
        "test_a_paused_step_forks_without_its_approval"
    ),
    93: (
        "test_forks_are_numbered_and_can_be_forked test_forks_at_once_get_ids_of_their_own "
        "test_a_taken_id_is_refused_and_nothing_is_written"
    ),
    94: "test_r36_a_step_that_is_not_kept test_a_step_beyond_the_limit_is_not_kept",
    97: "test_compare_trajectories test_fork_at_step_1_with_another_weather",
    98: "test_fingerprint test_only_code_changed",
    99: (
        "test_resume_warns test_resume_refuses test_an_approval_after_a_deploy_is_put_back "
        "test_a_record_without_a_fingerprint_resumes_without_a_word"
    ),
    103: (
        "test_an_older_record_reads_as_unfinished "
        "test_an_old_pause_leaves_its_later_calls_alone "
        "test_an_entry_without_a_status_is_in_progress"
    ),
}

_HEAD = """# Features and the tests that show them

Every promise of the documents that perdure follows, and the tests that show it. This page is
made from the names of the tests: `python -m tests.features --write`.

| row | promise | shown by |
| --- | --- | --- |
"""


def tests() -> dict[str, str]:
    """The names of all tests, and the files that they are in."""
    found = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name] = file.relative_to(TESTS.parent).as_posix()
    return found


def shown() -> dict[int, list[str]]:
    """For each row, the tests that show it."""
    names = [name for name in tests() if name.startswith("test_")]
    rows = {row: SHOWN_BY.get(row, "").split() for row in FEATURES}
    for name in names:
        leading = re.match(r"test((?:_f\d+)+)_", name)
        for row in re.findall(r"\d+", leading[1]) if leading else []:
            rows.setdefault(int(row), []).append(name)
    return rows


def page() -> str:
    """The text of ``docs/features.md``."""
    files = tests()
    lines = []
    for row, names in shown().items():
        links = [f"[`{name}`](../{files[name]})" for name in names if name in files]
        text = "<br>".join(links) or f"later: {LATER.get(row, 'no test yet')}"
        lines.append(f"| F{row} | {FEATURES[row]} | {text} |\n")
    return _HEAD + "".join(lines)


def missing() -> list[int]:
    """Rows that no test shows."""
    return [row for row, names in shown().items() if not names]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), "utf-8")
    for row in missing():
        print(f"F{row} {FEATURES[row]}: {LATER.get(row, 'no test')}")
