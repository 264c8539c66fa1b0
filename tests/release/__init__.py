"""Checks of a release: of its files, and of its wheel in an environment of its own."""
