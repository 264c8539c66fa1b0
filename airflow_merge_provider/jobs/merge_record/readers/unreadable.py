"""The error of a file that cannot be read."""

from __future__ import annotations

from airflow_merge_provider.core.change_plan.shown_rows import mask_quotes

_REASON_MAX_LENGTH = 500


class UnreadableError(Exception):
    """Raised if a file is not valid for its reader; the message contains the reason."""


def describe_error(error: Exception) -> str:
    """Return a description of an error of a reader in one line."""
    lines = mask_quotes(str(error)).strip().splitlines()
    return lines[0][:_REASON_MAX_LENGTH] if lines else type(error).__name__
