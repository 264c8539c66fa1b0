"""Undo runs of a target."""
