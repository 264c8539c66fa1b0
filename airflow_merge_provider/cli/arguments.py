"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from airflow_merge_provider.cli.run_file import WAREHOUSE
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.spark_conf import find_conf_problems
from airflow_merge_provider.spark_process.launch import LOCAL

_WHERE = f"the folder or URI that contains the datasets with bare ids (default: ${WAREHOUSE})"
_CONNECTION = (
    "Airflow's connection of the warehouse and its credentials; the command then has Airflow's settings, too "
    "(default: environment variables, in airflow merge the connection merge_store_default)"
)


def add_nothing(_: argparse.ArgumentParser) -> None:
    """Add no arguments: for a command without any."""


def add_json(parser: argparse.ArgumentParser, help_text: str = "print JSON instead of text") -> None:
    """Add the option that prints JSON."""
    parser.add_argument("--json", action="store_true", help=help_text)


def add_all_columns(parser: argparse.ArgumentParser) -> None:
    """Add the option that shows internal columns."""
    help_text = "show internal columns, too, such as _hash and _ts of a golden record"
    parser.add_argument("--all-columns", action="store_true", help=help_text)


def add_limit(parser: argparse.ArgumentParser, noun: str) -> None:
    """Add the option that limits how much is printed."""
    help_text = f"the number of {noun} (default: %(default)s)"
    parser.add_argument("--limit", type=parse_count, default=20, metavar="N", help=help_text)


def parse_count(text: str) -> int:
    """Return the value of an option that limits how much is printed.

    :raises ArgumentTypeError: if it is not an integer from 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid (use an integer from 1)")
    return int(text)


def add_target(
    parser: argparse.ArgumentParser, help_text: str = "a dataset: a bare id or a location"
) -> None:
    """Add the argument of a target, and the warehouse of its bare id."""
    parser.add_argument("target", metavar="TARGET", help=help_text)
    add_warehouse(parser)


def add_warehouse(parser: argparse.ArgumentParser) -> None:
    """Add the options of the warehouse, and of the connection that has its location and credentials."""
    parser.add_argument("--warehouse", metavar="LOCATION", help=_WHERE)
    parser.add_argument("--store-conn", metavar="CONN_ID", help=_CONNECTION)


def add_remote(parser: argparse.ArgumentParser) -> None:
    """Add the option of a Spark Connect server."""
    parser.add_argument(
        "--remote", metavar="URL", help="a Spark Connect server, such as sc://localhost:15002"
    )


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a pipe, a configuration or a request."""
    parser.add_argument("file", metavar="FILE", help="a JSON or YAML file; - for standard input")
    add_warehouse(parser)


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Add the options of Spark."""
    parser.add_argument("--master", default=LOCAL, help="the Spark master (default: %(default)s)")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting; can be repeated"
    )


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return the Spark settings of ``--conf`` options.

    :raises ConfigError: if one has no value, no valid name, or no effect.
    """
    invalid_pairs = [pair for pair in pairs if "=" not in pair]
    if invalid_pairs:
        raise ConfigError(f"--conf {invalid_pairs[0]}: must have the form NAME=VALUE")
    settings = dict(pair.split("=", 1) for pair in pairs)
    if problems := find_conf_problems(settings, "--conf"):
        raise ConfigError.from_problems(problems)
    return settings
