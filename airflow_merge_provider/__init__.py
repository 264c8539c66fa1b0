"""Airflow operators that run PySpark jobs to merge data over Delta tables."""

from __future__ import annotations

__version__ = "0.1.0"
