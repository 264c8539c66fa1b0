"""Decide which runs of a target an undo reverts, and to which version the target goes back."""
