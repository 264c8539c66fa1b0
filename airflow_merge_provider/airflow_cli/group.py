"""Add the group ``merge`` to Airflow's command line: the same commands, arguments and exit codes.

Airflow imports this module for each of its own commands, so it imports nothing that a command needs.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

from airflow_merge_provider.cli.main import add_arguments_when_chosen, run_command
from airflow_merge_provider.cli.registry import COMMANDS, Command

_PROGRAM_PREFIX, _GROUP_COMMAND = "airflow_merge_provider ", "airflow merge "
_HELP = "Run, check and explain merges over Delta tables"


class CommandArguments(Arg):
    """All arguments of one command, which its parser gets when the command is chosen."""

    def __init__(self, command: Command) -> None:
        super().__init__(flags=(command.name,))  # type: ignore[no-untyped-call]
        self._command = command

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser of the command."""
        add_arguments_when_chosen(parser, self._command)


def get_commands() -> list[GroupCommand]:
    """Return the group of commands that Airflow adds to its command line."""
    subcommands = [
        ActionCommand(
            name=command.name,
            help=command.summary,
            description=command.description,
            epilog=command.epilog.replace(_PROGRAM_PREFIX, _GROUP_COMMAND),
            func=partial(run_in_airflow, command),
            args=(CommandArguments(command),),
        )
        for command in COMMANDS
    ]
    return [GroupCommand(name="merge", help=_HELP, subcommands=subcommands)]


def run_in_airflow(command: Command, options: argparse.Namespace) -> None:
    """Run a command with the settings and the connection of Airflow, and exit with its code."""
    from airflow_merge_provider.airflow_cli.settings import apply_settings  # noqa: PLC0415 - import time

    sys.exit(run_command(command, options, prepare=apply_settings))
