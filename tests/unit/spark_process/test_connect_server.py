"""Tests of the process of a server: who may listen on its port, and when it is ready."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from airflow_merge_provider.cli.servers import add_server_arguments
from airflow_merge_provider.core.child_process import write_server_answer
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.spark_process.connect_server import ConnectServer
from airflow_merge_provider.spark_process.connect_token import LOOPBACK
from tests.unit.spark_process.conftest import FakeMachine


def test_a_server_listens_on_this_machine_by_default() -> None:
    """Other machines reach a server only if its user chooses an address that they reach."""
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)

    assert parser.parse_args([]).host == LOOPBACK[0] == "127.0.0.1"


def test_a_server_holds_its_port_on_both_loopback_addresses(machine: FakeMachine) -> None:
    """Clients that dial localhost try both addresses, so nobody else can listen on the other one."""
    port = _find_free_port()
    server = ConnectServer(host="localhost", port=port)
    with socket.socket(socket.AF_INET6) as other, pytest.raises(OSError, match="in use"):
        other.bind(("::1", port))
    server.stop()

    with (
        socket.create_server(("::1", port), family=socket.AF_INET6),
        pytest.raises(SetupError, match=f"Port {port} on ::1 is already in use"),
    ):
        ConnectServer(host="127.0.0.1", port=port)


def test_a_server_is_ready_only_with_its_own_answer(machine: FakeMachine, tmp_path: Path) -> None:
    """Another process on the port of a server is not that server, and nor is who does not know its token."""
    port = _find_free_port()
    server = ConnectServer(host="127.0.0.1", port=port)
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    server.start(tmp_path, "token")
    try:
        with socket.create_server(("127.0.0.1", port)):
            server.call_when_ready(pytest.fail, seconds=0.3)
            write_server_answer(tmp_path / "answer", "guessed", port)
            assert not server.is_ready()
            write_server_answer(tmp_path / "answer", "token", port)
            assert server.is_ready()
    finally:
        server.stop(5)
        assert list(server.read_lines()) == []
    assert not server.is_ready()


def _find_free_port() -> int:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])
