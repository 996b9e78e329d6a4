"""Deterministic code only: the agent loop as a Temporal workflow.

This module runs again in every workflow sandbox: it imports nothing.
"""
