"""List the commands: names, help and examples, and the functions that add arguments and run them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

FIRST_RUN = """first run:
  airflow_merge_provider init scd2 --datasets c.csv --target history --key id --warehouse lake -o load.yaml
  airflow_merge_provider check load.yaml
  airflow_merge_provider plan load.yaml
  airflow_merge_provider run load.yaml"""
EXITS = """exit codes:
  0  the command succeeded
  1  the Spark process or the command failed unexpectedly; a retry may succeed
  2  the file or the command line is not valid; nothing was written
  3  the data cannot be merged as configured; nothing was written, but maybe some tables of dispatch_by
  4  a prerequisite is missing: Java, a jar, a warehouse, a service
  5  another run committed first; nothing was written, but maybe some tables of dispatch_by; run it again
  6  another writer has committed during the run, and the commit of the run could not be reverted"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line.

    ``arguments`` and ``function`` name functions as ``module:function`` of this package. They are imported
    when the command is chosen: the modules of all commands together take a second to import.
    """

    name: str
    summary: str
    example: str
    arguments: str
    function: str

    @property
    def description(self) -> str:
        """The summary as a sentence."""
        return f"{self.summary[0].upper()}{self.summary[1:]}."

    @property
    def epilog(self) -> str:
        """The text below the options: an example and the exit codes."""
        return f"example:\n  {self.example}\n\n{EXITS}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command to a parser."""
        self._find_function(self.arguments)(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Run the command and return its exit code."""
        code: int = self._find_function(self.function)(options)
        return code

    def _find_function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = resolve_name(f"{__package__}.{name}")
        return function


COMMANDS = (
    Command(
        "run",
        "run a pipe, a configuration or a request, and print its report",
        "airflow_merge_provider run history.yaml --warehouse lake",
        "runs:add_run_arguments",
        "runs:run_file",
    ),
    Command(
        "plan",
        "show the rows that a run would change, and why",
        "airflow_merge_provider plan history.yaml --warehouse lake",
        "runs:add_plan_arguments",
        "runs:plan_file",
    ),
    Command(
        "check",
        "check a pipe, a configuration or a request, and print all problems",
        "airflow_merge_provider check history.yaml --warehouse lake",
        "arguments:add_file",
        "check:check_file",
    ),
    Command(
        "undo",
        "undo the newest run of a target that is in force: its rows, offsets and side tables",
        "airflow_merge_provider undo history --warehouse lake --dry-run",
        "runs:add_undo_arguments",
        "runs:undo_run",
    ),
    Command(
        "history",
        "print the newest commits of a target and their runs",
        "airflow_merge_provider history history --warehouse lake --limit 5",
        "history:add_arguments",
        "history:print_history",
    ),
    Command(
        "diff",
        "show the rows that differ between two versions of a table",
        "airflow_merge_provider diff golden 3 5 --warehouse /lake",
        "diff:add_arguments",
        "diff:print_diff",
    ),
    Command(
        "timeline",
        "show every state of a key over the versions of a table",
        "airflow_merge_provider timeline orders 7 --warehouse /lake",
        "tables:add_timeline_arguments",
        "tables:print_timeline",
    ),
    Command(
        "bins",
        "list the open bins and the last merges of a merge record",
        "airflow_merge_provider bins state --warehouse /lake",
        "bins:add_arguments",
        "bins:print_bins",
    ),
    Command(
        "explain",
        "show which runs and inputs made a row",
        "airflow_merge_provider explain orders 7 --warehouse /lake",
        "tables:add_explain_arguments",
        "tables:print_explanation",
    ),
    Command(
        "schema",
        "print the JSON Schema of a configuration, a request or a result",
        "airflow_merge_provider schema upsert",
        "tables:add_schema_arguments",
        "tables:print_schema",
    ),
    Command(
        "init",
        "write a run file for tables or files that exist",
        "airflow_merge_provider init scd2 --datasets customers.csv --target history --key id "
        "--warehouse lake -o history.yaml",
        "init:add_arguments",
        "init:write_run_file",
    ),
    Command(
        "doctor",
        "check what runs need on this machine: Java, Spark, jars, settings, the warehouse",
        "airflow_merge_provider doctor --warehouse /lake",
        "doctor:add_arguments",
        "doctor:print_checks",
    ),
    Command(
        "connect-server",
        "start a Spark Connect server on this machine",
        "airflow_merge_provider connect-server --port 15002",
        "servers:add_server_arguments",
        "servers:run_server",
    ),
    Command(
        "prepare",
        "download or compile the jars, and create a class archive for faster starts",
        "airflow_merge_provider prepare",
        "arguments:add_nothing",
        "servers:prepare_archive",
    ),
    Command(
        "local-spark",
        "list or stop the shared Spark servers of this user on this machine",
        "airflow_merge_provider local-spark status",
        "servers:add_local_spark_arguments",
        "servers:manage_servers",
    ),
)
