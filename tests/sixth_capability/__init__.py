"""A capability outside the package, which copies a table: everything that a sixth capability has to bring."""
