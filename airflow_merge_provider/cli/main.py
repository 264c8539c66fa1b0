"""Provide the command line: run, check and explain merges without Airflow."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from airflow_merge_provider import __version__
from airflow_merge_provider.cli.output import print_error
from airflow_merge_provider.cli.registry import COMMANDS, EXITS, FIRST_RUN, Command
from airflow_merge_provider.core.errors import (
    ConfigError,
    ConflictError,
    DataError,
    MergeError,
    SetupError,
    UnrevertedError,
)

_EXITS: dict[type[Exception], int] = {
    ConfigError: 2, DataError: 3, SetupError: 4, ConflictError: 5, UnrevertedError: 6,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a command with ``--store-conn`` becomes one of Airflow."""
    options = parse_arguments(argv)
    if getattr(options, "store_conn", None):
        _become_airflow(options, sys.argv[1:] if argv is None else argv)
    return run_command(options.command, options)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line; ``command`` is the chosen command."""
    return _build_parser().parse_args(argv)


def run_command(
    command: Command,
    options: argparse.Namespace,
    prepare: Callable[[argparse.Namespace], None] | None = None,
) -> int:
    """Run a command, print its error if it fails, and return its exit code.

    :param prepare: is called first; its errors are reported as those of the command.
    """
    try:
        if prepare is not None:
            prepare(options)
        return command.run(options)
    except MergeError as error:
        print_error(str(error))
        return next((code for kind, code in _EXITS.items() if isinstance(error, kind)), 1)
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of the output closed the pipe. Without this, Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if getattr(options, "verbose", False):
            raise
        print_error(f"{type(error).__name__}: {error} (--verbose prints the traceback)")
        return 1


def _become_airflow(options: argparse.Namespace, argv: Sequence[str]) -> NoReturn:
    """Replace this process by ``airflow merge``: only Airflow can read its connections."""
    name = options.command.name
    # The only option before the command is one that Airflow's command line accepts after it.
    arguments = [*argv[argv.index(name) + 1 :], *(["--verbose"] if options.verbose else [])]
    os.execv(sys.executable, [sys.executable, "-m", "airflow", "merge", name, *arguments])  # noqa: S606


def add_arguments_when_chosen(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the arguments of a command, and ``--verbose``, once its parser is used.

    Adding them imports the modules of the command, so it is done for the chosen command only.
    """
    parse_known_args = parser.parse_known_args

    def add_and_parse(*arguments: Any, **named_arguments: Any) -> Any:
        parser.parse_known_args = parse_known_args  # type: ignore[method-assign]
        command.add_arguments(parser)
        help_text = "print the traceback of an error"
        parser.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=help_text)
        return parse_known_args(*arguments, **named_arguments)

    parser.parse_known_args = add_and_parse  # type: ignore[method-assign]


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow_merge_provider",
        description="Merge data over Delta tables with Spark, without Airflow.",
        epilog=f"{FIRST_RUN}\n\n{EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--verbose", action="store_true", help="print the traceback of an error")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(command=command)
        add_arguments_when_chosen(subparser, command)
    return parser
