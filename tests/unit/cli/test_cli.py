"""Tests of the command line: arguments, output and exit codes."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_merge_provider.cli import main as cli, runs
from airflow_merge_provider.cli.registry import COMMANDS, Command
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.protocol import JobFailure, JobResult
from tests.fakes import REPORT, build_report
from tests.jobs import probe

PIPE = {
    "_id": "golden",
    "type": "pipe",
    "source": {"type": "merge", "version": 2, "datasets": ["a a", "b b"], "equality": [["eq", "a.x", "b.x"]]},
}


def test_a_long_report_is_printed_whole(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report has no limit of its length on the command line, unlike the XCom of a task."""
    long = {**REPORT, "details": {"columns": [{"name": "x" * 200}] * 40}}
    job_run["answer"] = JobResult(report=build_report(**long))

    for command in (["run"], ["run", "--json"], ["plan", "--json"]):
        assert cli.main([*command, file(PIPE), "--warehouse", lake]) == 0
        assert json.loads(capsys.readouterr().out) == long


def test_a_pipe_runs_and_its_report_is_printed(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress is printed to stderr, so that the report on stdout can be piped."""
    code = cli.main(["run", file(PIPE), "--warehouse", lake, "--conf", "spark.x=1=2", "--dry-run"])

    output = capsys.readouterr()
    assert code == 0
    assert json.loads(output.out) == build_report().as_json()
    assert "look: 0.1s" in output.err
    request = job_run["request"]
    assert request.config["target"] == "golden"
    assert (request.warehouse, request.until, request.full_refresh) == (lake, "transform", False)
    assert job_run["conf"] == {"spark.x": "1=2"}


def test_a_setting_without_effect_is_refused(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting without effect is rejected with the place where it belongs."""
    code = cli.main(["run", file(PIPE), "--warehouse", lake, "--conf", "spark.remote=sc://here"])

    assert code == 2
    assert "--conf['spark.remote']: has no effect in the Spark settings" in capsys.readouterr().err
    assert "request" not in job_run


def test_a_request_runs_as_it_stands(lake: str, file: Any, job_run: Any) -> None:
    """A request file runs with its own token and start, so running it again is a retry."""
    request = probe.build_request("s", "t").model_copy(
        update={"config": {"target": "t", "datasets": ["a a"]}, "warehouse": lake}
    )

    assert cli.main(["run", file(request.model_dump_json())]) == 0
    assert job_run["request"] == request


def test_a_configuration_runs_too(lake: str, file: Any, job_run: Any) -> None:
    """A file may contain a configuration, as an operator has it, together with a warehouse."""
    config = {"job": "merge_source", "warehouse": lake, "target": "t", "datasets": ["a a"]}

    assert cli.main(["run", file(config), "--run-id", "r7", "--full-refresh"]) == 0
    assert job_run["request"].run.run_id == "r7"
    assert job_run["request"].full_refresh
    assert job_run["request"].config == {"target": "t", "datasets": ["a a"]}


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("config", 2), ("data", 3), ("setup", 4), ("conflict", 5), ("unreverted", 6), ("job", 1)],
)
def test_each_kind_of_failure_has_its_exit_code(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str], code: Any, exit_code: Any
) -> None:
    """Each kind of failure has its own exit code for scripts."""
    job_run["answer"] = JobFailure(code=code, message="because\nof this", retryable=False, trace="deep")

    assert cli.main(["run", file(PIPE), "--warehouse", lake]) == exit_code
    assert "error: because\n" in capsys.readouterr().err


def test_what_is_missing_is_one_line(
    lake: str, file: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error with a fix is printed as one line without a traceback."""

    def run_job(request: Any, **how: Any) -> None:
        raise SetupError("Java is missing: install Java 17 or 21")

    monkeypatch.setattr(runs, "run_job", run_job)

    assert cli.main(["run", file(PIPE), "--warehouse", lake]) == 4
    assert capsys.readouterr().err == "error: Java is missing: install Java 17 or 21\n"


def test_a_run_needs_a_target_and_a_warehouse_for_bare_names(
    file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing target and a missing warehouse for bare names are reported together before Spark starts."""
    assert cli.main(["run", file(PIPE["source"])]) == 2

    output = capsys.readouterr().err
    assert "target: is required" in output
    assert "datasets[0]: dataset 'a' requires a warehouse" in output
    assert "request" not in job_run


def test_check_says_all_problems_at_once(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Problems of fields and of the rules between them are reported together with their paths."""
    wrong = {"source": {"datasets": ["a a", "b"], "equality": [["is", 1, 2]], "identiti": "first"}}

    assert cli.main(["check", file(wrong)]) == 2

    output = capsys.readouterr().err
    assert output.startswith("error: ")
    for fragment in ("datasets[1]", "equality[0]", "identiti", "of 3 problems"):
        assert fragment in output


def test_check_of_a_right_file_says_so_with_its_warnings(
    file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A valid file is reported as valid, with its warnings, and the exit code is 0."""
    path = file(PIPE["source"] | {"version": 1})

    assert cli.main(["check", path]) == 0
    output = capsys.readouterr()
    unchecked = "columns not checked: dataset 'a' requires a warehouse (set --warehouse)"
    assert output.out == f"{path}: valid merge_source configuration\n{unchecked}\n"
    assert "warning: version: 1 is deprecated" in output.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must contain one object"),
        ('{"job": "merge_sorce"}', "merge_source"),
        ('{"job": ["upsert"]}', "unknown job"),
        ('{"strategy": "scd2", "source": "s", "target": "t"}', "job: is required (set it to merge_source, "),
        ('{"config": {"target": "t", "table_type": "upsert"}}', "job: is required (set it to merge_source, "),
        ('{"job": "upsert", "config": 3}', "config: must be an object"),
        ('{"job": "upsert", "job": "scd2"}', "'job' occurs twice"),
        ("[" * 5000 + "]" * 5000, "nested more than 100 levels deep"),
        ('{"a": NaN}', "NaN is not valid JSON"),
        ('{"a": "\\ud800"}', "unpaired surrogate"),
    ],
)
def test_a_file_that_is_something_else_is_refused(
    file: Any, capsys: pytest.CaptureFixture[str], content: Any, message: Any
) -> None:
    """A file with other content is rejected; the first line has the expected content."""
    assert cli.main(["check", file(content)]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is rejected with the reason of the operating system."""
    assert cli.main(["check", "/nowhere.json"]) == 2
    assert "/nowhere.json: does not exist" in capsys.readouterr().err


def test_standard_input_is_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard input is accepted as a file."""
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(PIPE)))

    assert cli.main(["check", "-"]) == 0
    assert "valid merge_source configuration" in capsys.readouterr().out


def test_a_setting_without_a_value_is_refused(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting without a value is rejected."""
    assert cli.main(["run", file(PIPE), "--warehouse", lake, "--conf", "spark.x"]) == 2
    assert "--conf spark.x: must have the form NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("of", "valid"),
    [
        ("merge_source", {"target": "t", "datasets": ["a a"]}),
        ("upsert", {"target": "t", "source": "s", "primary_key": ["id"]}),
        ("scd2", {"target": "t", "source": "s", "natural_key": ["id"]}),
        ("delete_insert", {"target": "t", "source": "s", "primary_key": ["id"]}),
        ("request", json.loads(probe.build_request("s", "t").model_dump_json())),
        ("report", REPORT),
        ("result", {"protocol": 1, "ok": True, "report": REPORT}),
        ("result", {"protocol": 1, "ok": False, "code": "data", "message": "no", "retryable": False}),
    ],
)
def test_a_schema_accepts_what_is_right_and_refuses_what_is_not(
    capsys: pytest.CaptureFixture[str], of: Any, valid: Any
) -> None:
    """Schemas accept valid and reject invalid files. Both directions of the protocol have a schema."""
    assert cli.main(["schema", of]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)

    jsonschema.validate(valid, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**valid, "nobody": 1}, schema)


def test_history_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The history of a missing table is an error with its name."""
    assert cli.main(["history", str(tmp_path / "none")]) == 3
    assert "is not a Delta table" in capsys.readouterr().err


def test_help_tells_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """The help lists all commands, options and exit codes."""
    with pytest.raises(SystemExit):
        cli.main(["--help"])

    output = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command.name}" in output
    assert "exit codes:" in output
    first_run = output.partition("first run:\n")[2].partition("\n\n")[0].splitlines()
    names = [cli.parse_arguments(shlex.split(line)[1:]).command.name for line in first_run]
    assert names == ["init", "check", "plan", "run"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_has_help_with_an_example_that_parses(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """The help of a command shows an example, and the arguments of the example are valid."""
    with pytest.raises(SystemExit) as ended:
        cli.main([command.name, "--help"])

    assert ended.value.code == 0
    assert command.example in capsys.readouterr().out
    program, *arguments = shlex.split(command.example)
    assert program == "airflow_merge_provider"
    assert cli.parse_arguments(arguments).command is command


def test_verbose_may_be_before_or_after_the_command() -> None:
    """`--verbose` has the same effect at both places."""
    assert cli.parse_arguments(["--verbose", "check", "f"]).verbose
    assert cli.parse_arguments(["check", "f", "--verbose"]).verbose
    assert not cli.parse_arguments(["check", "f"]).verbose


def test_the_package_runs_as_a_module() -> None:
    """The module that python -m starts calls the same function as the command."""
    text = (Path(cli.__file__).parents[1] / "__main__.py").read_text()

    assert "sys.exit(main())" in text


def test_pipes_of_every_kind_are_checked_and_run(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pipes of every kind are checked and run.

    The sink defines the target and its population; the pump is checked too.
    """
    pipe = {
        "_id": "orders",
        "source": {"type": "upsert", "source": "extract", "primary_key": "id"},
        "sink": {"dataset": "orders_table", "set_initial_offset": "always"},
        "pump": {"schedule_interval": 60},
    }

    assert cli.main(["run", file(json.dumps({**pipe, "warehouse": lake}))]) == 0
    request = job_run["request"]
    assert (request.job, request.config["strategy"]) == ("merge_load", "upsert")
    assert request.config["target"] == request.population.target == "orders_table"
    assert (request.warehouse, request.population.set_initial_offset) == (lake, "always")
    assert request.population.datasets == ("extract",)

    assert cli.main(["check", file(json.dumps({**pipe, "pump": {"schedule_interval": 0}}))]) == 2
    assert "pump.schedule_interval: must be a number of seconds above 0" in capsys.readouterr().err


def test_yaml_is_read_where_json_is(
    lake: str,
    tmp_path: Path,
    job_run: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """YAML is accepted like JSON. Files are distinguished by name, standard input by its first character."""
    text = f"job: upsert\nsource: s\ntarget: t\nprimary_key: id\nwarehouse: {lake}\n"
    (tmp_path / "load.yaml").write_text(text)

    assert cli.main(["run", str(tmp_path / "load.yaml")]) == 0
    assert (job_run["request"].job, job_run["request"].config["strategy"]) == ("merge_load", "upsert")
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert cli.main(["check", "-"]) == 0
    assert capsys.readouterr().out.endswith("-: valid upsert configuration\ncolumns checked: s\n")


def test_the_warehouse_comes_from_the_option_the_file_or_the_environment(
    file: Any, job_run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The warehouse comes from the option, else the file, else the environment.

    Relative paths start at the current folder.
    """
    monkeypatch.setenv("AIRFLOW__MERGE__WAREHOUSE", "/configured")
    monkeypatch.chdir(tmp_path)
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": [1]}))
    load = {"job": "upsert", "source": "./new/../orders", "target": "t", "primary_key": "id"}

    def run_and_read_warehouse(content: Any, *options: Any) -> Any:
        assert cli.main(["run", file(content), *options]) == 0
        return job_run["request"].warehouse

    assert run_and_read_warehouse(load) == "/configured"
    assert job_run["request"].config["source"] == str(tmp_path / "orders")
    assert run_and_read_warehouse({**load, "warehouse": "/of/the/file"}) == "/of/the/file"
    assert run_and_read_warehouse({**load, "warehouse": "/of/the/file"}, "--warehouse", "lake") == str(
        tmp_path / "lake"
    )


def test_an_unexpected_error_is_one_line(
    lake: str, file: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unexpected error is one line; the traceback is printed on request."""

    def raise_error(*_: Any, **__: Any) -> None:
        raise RuntimeError("of its own")

    monkeypatch.setattr(runs, "run_job", raise_error)

    assert cli.main(["run", file(PIPE), "--warehouse", lake]) == 1
    assert capsys.readouterr().err == "error: RuntimeError: of its own (--verbose prints the traceback)\n"
    with pytest.raises(RuntimeError):
        cli.main(["--verbose", "run", file(PIPE), "--warehouse", lake])


def test_a_reader_that_has_had_enough_ends_the_output_in_silence() -> None:
    """If the reader closes the pipe early, the command ends without an error message."""
    command = (
        f"{sys.executable} -m airflow_merge_provider schema merge_record | head -c 1; echo ${{PIPESTATUS[0]}}"
    )

    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)

    assert (process.stdout, process.stderr) in {("{0\n", ""), ("{141\n", "")}


def test_one_run_is_undone_alone(lake: str, job_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry run of such an undo computes the versions that change, so Spark starts for it."""
    monkeypatch.setattr(runs, "find_result", lambda *_args, **_named: None)

    code = cli.main(["undo", "t", "--warehouse", lake, "--run", "r2", "--only", "--dry-run"])

    assert code == 0
    request = job_run["request"]
    assert request.config == {"target": "t", "run": "r2", "only": True}
    assert request.until == "transform"
