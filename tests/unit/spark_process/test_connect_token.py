"""Tests of the token of a Spark Connect server: a secret of one user, found by port."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.spark_process.connect_token import (
    TOKEN_VARIABLE,
    add_token,
    get_token_file,
    offer_token,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a separate cache folder and no token in the environment."""
    monkeypatch.setenv("AIRFLOW_MERGE_PROVIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_a_server_has_a_token_of_its_own_while_it_runs() -> None:
    """A running server has its own token.

    Only its user can read it, two servers have two tokens, and it is deleted when the server ends.
    """
    with offer_token(15002) as (token, file):
        assert len(token) > 30
        assert file == get_token_file(15002)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        with offer_token(15003) as (other_token, _):
            assert other_token != token
    assert not file.exists()


def test_a_token_that_a_killed_server_left_is_not_used_again() -> None:
    """The token of a killed server is not reused, because it may have become known."""
    killed_server = offer_token(15002)
    old, _ = killed_server.__enter__()

    with offer_token(15002) as (token, _):
        assert token != old


def test_a_token_of_a_killed_server_is_sent_to_nobody() -> None:
    """Another process may listen on the port of a server that was killed, and must not get its token."""
    code = "import os; from airflow_merge_provider.spark_process.connect_token import offer_token\n"
    code += "offer = offer_token(15002); offer.__enter__(); os._exit(9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert get_token_file(15002).exists()

    assert add_token("sc://localhost") == ("sc://127.0.0.1:15002", {})


def test_a_token_file_of_the_user_stays(tmp_path: Path) -> None:
    """A token file of the user is read, or written if it is missing, and is kept."""
    file = tmp_path / "mine" / "token"
    with offer_token(15002, file) as (first, _):
        pass

    with offer_token(15002, file) as (second, named):
        assert (second, named) == (first, file)
    assert file.exists()


@pytest.mark.parametrize(
    ("mode", "content", "message"),
    [
        (0o640, "x", "can be read by other users: run chmod 600"),
        (0o604, "x", "can be read by other users: run chmod 600"),
        (0o600, " \n", "is empty"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(tmp_path: Path, mode: Any, content: Any, message: Any) -> None:
    """A file that is not secret is rejected before a server starts with it."""
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)

    with pytest.raises(SetupError, match=message), offer_token(15002, file):
        pass


def test_a_token_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token file that another user has put there is rejected by clients and servers."""
    with offer_token(15002) as (_, file):
        monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)

        with pytest.raises(SetupError, match=r"15002\.token belongs to another user"):
            add_token("sc://localhost")
        with pytest.raises(SetupError, match="belongs to another user"), offer_token(15002, file):
            pass


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A file that cannot be written is an error with the option for another file."""
    (tmp_path / "file").touch()

    with (
        pytest.raises(SetupError, match="set another file with --token-file"),
        offer_token(1, tmp_path / "file/x"),
    ):
        pass


@pytest.mark.parametrize(
    ("host", "dialed"), [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]")]
)
def test_clients_on_this_machine_find_the_token(host: Any, dialed: Any) -> None:
    """Clients on this machine find the token, and dial one address instead of a name with two."""
    with offer_token(15002) as (token, _):
        assert add_token(f"sc://{host}:15002") == (f"sc://{dialed}:15002", {TOKEN_VARIABLE: token})
        assert add_token(f"sc://{host}/;user_id=me") == (
            f"sc://{dialed}:15002/;user_id=me",
            {TOKEN_VARIABLE: token},
        )
        assert add_token(f"sc://{host}:15003")[1] == {}


@pytest.mark.parametrize("url", ["sc://spark.example.com:15002", "sc://localhost:15002/;use_ssl=true"])
def test_other_servers_get_no_token_of_this_machine(url: Any) -> None:
    """Other servers get no token of this machine, because they are not the server of this user."""
    with offer_token(15002):
        assert add_token(url) == (url, {})


def test_a_token_that_is_given_stays() -> None:
    """A token in the address takes precedence.

    The one in the environment is used if this user runs no server there.
    """
    with offer_token(15002):
        assert add_token("sc://localhost:15002/;token=given") == ("sc://127.0.0.1:15002/;token=given", {})
    assert add_token("sc://localhost:15002") == ("sc://127.0.0.1:15002", {})


def test_a_file_that_cannot_be_read_is_said() -> None:
    """A file that cannot be read, such as a folder, is an error."""
    get_token_file(15002).mkdir(parents=True, mode=0o700)

    with pytest.raises(SetupError, match=r"The token file .*15002\.token cannot be read"):
        add_token("sc://localhost:15002")
