"""What ``make demo`` and ``make ui`` do: real data, a real Airflow, and the results for reading."""
