"""What OpenLineage receives: the datasets of tasks and assets, and the parent run of Spark jobs."""
