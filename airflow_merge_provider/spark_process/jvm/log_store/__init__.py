"""The log store that writes the log of Delta tables on S3 exactly once: its Java source and its jar."""
