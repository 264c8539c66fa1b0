"""Conditions that the rows of a run have to meet, and what the run does with rows that do not."""
