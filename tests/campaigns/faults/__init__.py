"""Runs that are killed, stopped or started twice at any step, compared with undisturbed runs."""
