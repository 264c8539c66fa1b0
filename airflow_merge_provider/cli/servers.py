"""Start, list and stop Spark servers of this machine."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from airflow_merge_provider.cli.arguments import add_spark, parse_settings
from airflow_merge_provider.spark_process.connect_server import run_connect_server
from airflow_merge_provider.spark_process.connect_token import CONNECT_PORT, TOKEN_VARIABLE
from airflow_merge_provider.spark_process.jvm.log_store.jar import find_log_store_jar
from airflow_merge_provider.spark_process.shared.administration import list_servers, stop_servers
from airflow_merge_provider.spark_process.shared.background import record_archive


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``connect-server``."""
    file_help = (
        "the file with the token that clients need (mode 0600); by default a file that the server removes "
        "when it ends"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=CONNECT_PORT, help="the port to listen on (default: %(default)s)"
    )
    parser.add_argument("--token-file", metavar="FILE", type=Path, help=file_help)
    add_spark(parser)


def add_local_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``local-spark``."""
    action_help = "status lists the servers; stop ends them, and runs that use them fail and can be retried"
    parser.add_argument("action", choices=["status", "stop"], help=action_help)


def run_server(options: argparse.Namespace) -> int:
    """Run a Spark Connect server until it ends."""

    def print_address(url: str, token_file: Path) -> None:
        print(f"Spark Connect server: {url} (stop it with Ctrl-C)", flush=True)
        print(
            f"clients of other users or machines need {TOKEN_VARIABLE}=$(cat {shlex.quote(str(token_file))})",
            flush=True,
        )

    return run_connect_server(
        host=options.host,
        port=options.port,
        master=options.master,
        conf=parse_settings(options.conf),
        token_file=options.token_file,
        on_ready=print_address,
        on_line=lambda line: print(line, file=sys.stderr, flush=True),
    )


def prepare_archive(_: argparse.Namespace) -> int:
    """Get the jars and the class archive, unless they exist."""
    find_log_store_jar()
    archive = record_archive(on_line=lambda line: print(line, file=sys.stderr, flush=True))
    print(
        f"class archive: {archive}"
        if archive
        else "this Java or Spark cannot create a class archive: runs start more slowly"
    )
    return 0


def manage_servers(options: argparse.Namespace) -> int:
    """List or stop the shared servers."""
    servers = list_servers() if options.action == "status" else stop_servers()
    for server in servers:
        print(server.format_line() if options.action == "status" else f"stopped pid {server.pid}")
    if not servers:
        print("no shared Spark server is running")
    return 0
