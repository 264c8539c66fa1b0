"""Check what runs need on this machine, and print one table."""

from __future__ import annotations

import argparse

from airflow_merge_provider.commands.arguments import add_json, add_warehouse
from airflow_merge_provider.commands.output import Column, StyledText, print_json, print_table
from airflow_merge_provider.doctor.diagnosis import Diagnosis, diagnose
from airflow_merge_provider.run_file import choose_warehouse

_COLUMNS = (Column("check"), Column("state"), Column("found"), Column("what to do"))
_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red"}
_MISSING_CODE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``doctor``."""
    add_warehouse(parser)
    parser.add_argument("--spark", action="store_true", help="also start Spark, and end it again")
    parser.set_defaults(airflow=None)
    add_json(parser)


def print_diagnosis(options: argparse.Namespace) -> int:
    """Print the checks; the exit code is 4 if something that runs need is missing."""
    warehouse = choose_warehouse(options.warehouse) if options.warehouse else None
    diagnosis = diagnose(warehouse, starts_spark=options.spark, airflow=options.airflow)
    if options.json:
        print_json(
            {
                "complete": diagnosis.is_complete,
                "checks": [check.as_object() for check in diagnosis.checks],
                "not_checked": list(diagnosis.not_checked),
            }
        )
    else:
        _print_text(diagnosis)
    return 0 if diagnosis.is_complete else _MISSING_CODE


def _print_text(diagnosis: Diagnosis) -> None:
    print_table(
        _COLUMNS,
        [
            (check.name, StyledText(check.state, _STYLES[check.state]), check.value, check.remedy)
            for check in diagnosis.checks
        ],
    )
    for note in diagnosis.not_checked:
        print(f"not checked: {note}")
