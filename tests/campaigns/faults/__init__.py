"""Runs whose processes are killed, stopped or doubled at any step, compared with clean runs."""
