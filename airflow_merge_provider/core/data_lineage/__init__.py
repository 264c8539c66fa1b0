"""What a run reads and writes, and which columns come from which, independent of the system that shows it."""
