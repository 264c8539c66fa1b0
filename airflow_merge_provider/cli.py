"""Provide the command line: run, check and explain merges without Airflow."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from airflow_merge_provider import __version__
from airflow_merge_provider.commands import runs, servers, tables
from airflow_merge_provider.core.errors import (
    ConfigError,
    ConflictError,
    DataError,
    MergeError,
    RiskError,
    SetupError,
)

_EXIT = {
    error.code: code
    for error, code in ((ConfigError, 2), (DataError, 3), (RiskError, 3), (SetupError, 4), (ConflictError, 5))
}
_EXITS = """exit codes:
  0  the command succeeded
  1  the Spark process or the command failed unexpectedly; a retry may succeed
  2  the file or the command line is not valid; nothing was written
  3  the data cannot be merged as configured; nothing was written
  4  a prerequisite is missing: Java, a jar, a warehouse, a service
  5  another run committed first; nothing was written; run the command again"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _build_parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except MergeError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT.get(error.code, 1)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output closed the pipe. Without this, Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if options.verbose:
            raise
        print(f"error: {type(error).__name__}: {error} (--verbose prints the traceback)", file=sys.stderr)
        return 1


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow_merge_provider",
        description="Merge data over Delta tables with Spark, without Airflow.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--verbose", action="store_true", help="print the traceback of an error")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add_command(
        name: str, call: Callable[[argparse.Namespace], int], help_text: str
    ) -> argparse.ArgumentParser:
        subparser = subparsers.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            epilog=_EXITS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(command=call)
        return subparser

    for commands in (runs, tables, servers):
        commands.add_commands(add_command)
    return parser
