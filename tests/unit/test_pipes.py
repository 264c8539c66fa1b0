"""Tests of creating DAGs from pipes, and of the errors of a folder with invalid pipes."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import AssetAny, AssetOrTimeSchedule, CronTriggerTimetable, DeltaTriggerTimetable

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.pipes import load_pipes, pipe_dag

SOURCE = {
    "type": "merge",
    "version": 2,
    "datasets": ["crm c", "erp e"],
    "equality": [["eq", "c.email", "e.mail"]],
}


def build_pipe(name: Any = "people", pump: Any = None, **changes: Any) -> Any:
    source = {**SOURCE, **changes.pop("source", {})}
    return {"_id": name, "type": "pipe", "source": source, "pump": pump or {}, **changes}


def list_problems(refused: Any) -> Any:
    return {problem.path: str(problem) for problem in refused.value.problems}


def test_a_pipe_becomes_a_sensor_and_a_merge() -> None:
    """The DAG has the name of the pipe. The merge waits for its inputs and writes the dataset of the sink."""
    dag = pipe_dag(build_pipe(sink={"type": "dataset", "dataset": "golden", "set_initial_offset": "always"}))

    merge = dag.get_task("merge")
    assert dag.dag_id == "people"
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert merge.upstream_task_ids == {"wait"}
    assert dag.get_task("wait").datasets == ["crm", "erp"]
    assert (merge.target, merge.set_initial_offset) == ("golden", "always")
    assert [asset.uri for asset in merge.outlets] == ["merge://warehouse/golden"]


@pytest.mark.parametrize(
    ("source", "waited"),
    [
        ({"initial_datasets": ["erp"], "ignore_non_existent_datasets": False}, (["erp"], False)),
        ({"initial_datasets": []}, None),
    ],
)
def test_the_sensor_waits_for_the_initial_datasets(source: Any, waited: Any) -> None:
    """The sensor waits for the initial datasets. Without initial datasets there is no sensor."""
    dag = pipe_dag(build_pipe(source=source))

    wait = dag.task_dict.get("wait")

    assert waited == (wait and (wait.datasets, wait.ignore_non_existent_datasets))


@pytest.mark.parametrize(
    ("pump", "signals", "kind"),
    [
        ({}, None, type(None)),
        ({}, True, AssetAny),
        ({"schedule_interval": 600}, None, DeltaTriggerTimetable),
        ({"schedule_interval": 600}, True, AssetOrTimeSchedule),
        ({"cron_expression": "0 3 * * *"}, False, CronTriggerTimetable),
        ({"cron_expression": "0 3 * * *", "mode": "manual"}, True, type(None)),
    ],
)
def test_the_schedule_is_by_time_or_by_inputs_or_both(pump: Any, signals: Any, kind: Any) -> None:
    """The schedule is by time, by assets, or both.

    An update of any input starts a run; a plain list of assets would wait for all.
    """
    dag = pipe_dag(build_pipe(pump=pump, source={"supports_signalling": signals}))

    schedule = dag.schedule
    assert isinstance(schedule, kind)
    if kind is AssetOrTimeSchedule:
        assert isinstance(schedule.asset_condition, AssetAny)
        assert schedule.timetable.delta == timedelta(seconds=600)


@pytest.mark.parametrize(("interval", "signalled"), [(119, False), (120, True)])
def test_the_global_setting_leaves_short_intervals_alone(interval: Any, signalled: Any) -> None:
    """The global setting does not change short intervals.

    An interval below two minutes detects changes soon enough.
    """
    dag = pipe_dag(build_pipe(pump={"schedule_interval": interval}), use_signalling_internally=True)

    assert isinstance(dag.schedule, AssetOrTimeSchedule) is signalled


def test_other_operators_are_pipes_too() -> None:
    """The type of the source selects the operator, and its other properties are the arguments."""
    source = {"type": "upsert", "source": "orders_extract", "primary_key": "id", "supports_signalling": True}

    dag = pipe_dag({"_id": "orders", "source": source}, operator_args={"warehouse": "/lake"})

    merge = dag.get_task("merge")
    assert (type(merge).__name__, merge.source, merge.target) == (
        "UpsertOperator",
        "orders_extract",
        "orders",
    )
    assert isinstance(dag.schedule, AssetAny)
    assert dag.get_task("wait").warehouse == merge.warehouse == "/lake"


def test_arguments_of_the_dag_win() -> None:
    """Airflow arguments given with the pipe take precedence."""
    dag = pipe_dag(build_pipe(), tags=["mine"], max_active_runs=2)

    assert (dag.tags, dag.max_active_runs) == ({"mine"}, 2)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"_id": "a b"}, "_id", "it is the DAG ID"),
        ({"transform": {"type": "dtl"}}, "transform", "in a separate pipe"),
        ({"pumpp": {}}, "pumpp", "did you mean 'pump'"),
        ({"source": {"type": "mergee"}}, "source.type", "did you mean 'merge'"),
        ({"source": {"datasets": ["crm"]}}, "source.datasets[0]", "expected '<dataset> <alias>'"),
        ({"source": {"equality_set": []}}, "source.equality_set", "did you mean 'equality_sets'"),
        ({"source": {"datasets": ["{{ x }} c"]}}, "source.datasets[0]", "templates are not supported"),
        ({"sink": {"dataset": "a b"}}, "sink.dataset", "is not a valid dataset"),
        ({"sink": {"set_initial_offset": "soon"}}, "sink.set_initial_offset", "must be"),
        ({"pump": {"schedule_interval": 0}}, "pump.schedule_interval", "seconds above 0"),
        ({"pump": {"cron_expression": "* *"}}, "pump.cron_expression", "five fields"),
        ({"pump": {"cron_expression": "@daily", "schedule_interval": 9}}, "pump", "keep one of them"),
        ({"pump": {"cron_expresion": "@daily"}}, "pump.cron_expresion", "did you mean 'cron_expression'"),
    ],
)
def test_a_wrong_pipe_says_where_and_what_to_do(changes: Any, path: Any, message: Any) -> None:
    """Each problem has its path in the pipe and a fix."""
    with pytest.raises(ConfigError) as refused:
        pipe_dag({**build_pipe(), **changes, "source": {**SOURCE, **changes.get("source", {})}})

    assert message in list_problems(refused)[path]


def test_what_is_wrong_in_and_around_the_source_is_said_at_once() -> None:
    """Problems inside and outside the source are reported together."""
    with pytest.raises(ConfigError) as refused:
        pipe_dag(build_pipe(pump={"schedule_interval": -1}, source={"equality": "c.x = e.x"}))

    assert set(list_problems(refused)) == {"pump.schedule_interval", "source.equality"}


def test_what_other_sources_lack_is_said_at_once() -> None:
    """A misspelt argument and a missing one of another source are reported as two problems."""
    with pytest.raises(ConfigError) as refused:
        pipe_dag({"_id": "orders", "source": {"type": "upsert", "source": "x", "primary_keys": "id"}})

    assert list_problems(refused) == {
        "source.primary_keys": (
            "source.primary_keys: unknown property 'primary_keys' (did you mean 'primary_key'?)"
        ),
        "source.primary_key": "source.primary_key: is required",
    }


def test_a_folder_holds_json_and_yaml(tmp_path: Path) -> None:
    """A file holds one pipe or a list of pipes as JSON or YAML; other files are ignored."""
    (tmp_path / "one.json").write_text(json.dumps(build_pipe("one")))
    (tmp_path / "more.json").write_text(json.dumps([build_pipe("two"), build_pipe("three")]))
    (tmp_path / "four.yaml").write_text(
        "_id: four\nsource:\n  type: merge\n  version: 2\n  datasets: [crm c, erp e]\n"
        "  equality:\n    - [eq, c.email, e.mail]\npump:\n  schedule_interval: 600\n"
    )
    (tmp_path / "README.md").write_text("not a pipe")

    dags = load_pipes(tmp_path)

    assert sorted(dags) == ["four", "one", "three", "two"]
    assert isinstance(dags["four"].schedule, DeltaTriggerTimetable)


def test_a_broken_folder_names_every_file_path_and_remedy(tmp_path: Path) -> None:
    """All files of a folder are checked, and the error has every file, path and fix."""
    (tmp_path / "comma.json").write_text('{"_id": "x", "source": {"datasets": ["a a",]}}')
    (tmp_path / "list.json").write_text(json.dumps([build_pipe("one"), build_pipe("two", transform=[])]))
    (tmp_path / "tabs.yml").write_text("_id: x\n\tsource: y")
    (tmp_path / "twice.json").write_text(json.dumps(build_pipe("one")))
    (tmp_path / "words.json").write_text('"people"')

    with pytest.raises(ConfigError) as refused:
        load_pipes(tmp_path, strict=True)

    problems = [str(problem).removeprefix(f"{tmp_path}/") for problem in refused.value.problems]
    assert re.match(r"comma.json: line 1: is not valid JSON: .*comma before the closing bracket", problems[0])
    assert problems[1].startswith("list.json[1]: transform: ")
    assert problems[2].startswith("tabs.yml: cannot be read: ")
    assert problems[3] == "twice.json: _id: 'one' is already in list.json (rename one of them)"
    assert problems[4].startswith("words.json: must be an object")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing folder is an error."""
    with pytest.raises(ConfigError, match="is not a folder"):
        load_pipes(tmp_path / "nothing")


def test_a_wrong_pipe_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid pipe does not affect the others.

    It becomes a DAG with the ID of the pipe or the file, which shows the problem and fails.
    """
    (tmp_path / "good.json").write_text(json.dumps([build_pipe("one"), build_pipe("two", transform=[])]))
    (tmp_path / "not json.json").write_text("{")
    (tmp_path / "twice.yaml").write_text(yaml.safe_dump(build_pipe("one")))
    (tmp_path / "folder.json").mkdir()

    dags = load_pipes(tmp_path)

    assert sorted(dags) == ["folder", "not_json", "one", "twice", "two"]
    assert {name for name, dag in dags.items() if "broken" in dag.tags} == set(dags) - {"one"}
    assert "transform: is not supported" in (dags["two"].description or "")
    assert cast("Any", dags["two"]).schedule is None
    assert "is not a file" in dags["folder"].doc_md
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 4
    with pytest.raises(AirflowFailException, match=r"'one' is already in good\.json"):
        dags["twice"].get_task("broken").execute({})


def test_dates_of_yaml_are_their_texts(tmp_path: Path) -> None:
    """Dates in YAML stay text, so that a pipe has the same content in both formats."""
    source = "source: {type: scd2, source: s, boundary_timestamp: 2024-01-01}"
    (tmp_path / "dated.yaml").write_text(f"_id: dated\n{source}\ndescription: 2024-01-01 10:00:00+02:00\n")

    (dag,) = load_pipes(tmp_path, strict=True).values()

    assert dag.description == "2024-01-01T10:00:00+02:00"
    assert dag.get_task("merge").boundary_timestamp == "2024-01-01"


@pytest.mark.parametrize("cron", ["99 * * * *", "a b c d e", "@never", "* * * *"])
def test_a_cron_expression_is_checked(cron: Any) -> None:
    """A cron expression is checked at parse time.

    The scheduler would detect an error only at the next run.
    """
    with pytest.raises(ConfigError, match=r"pump\.cron_expression"):
        pipe_dag(build_pipe("p", pump={"cron_expression": cron}))
