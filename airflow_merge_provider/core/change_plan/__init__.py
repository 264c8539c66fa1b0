"""Plans of changes: their summaries, and the records of saved plans."""
