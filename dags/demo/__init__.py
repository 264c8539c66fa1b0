"""Run ``make demo`` and ``make ui``: real data, a complete Airflow, and readable results."""
