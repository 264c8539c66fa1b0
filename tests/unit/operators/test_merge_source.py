"""Tests of MergeSourceOperator without a database: arguments, requests and reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_merge_provider.core.errors import ConfigError, ConflictError, JobError, SetupError
from airflow_merge_provider.core.protocol import DatasetDescription, JobFailure, JobResult
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from tests.fakes import REPORT, FakeSparkJobHook, build_report, build_unchanged

RULES = {"datasets": ["crm c", "erp e"], "equality": [["eq", "c.email", "e.mail"]]}


def build_operator(**kwargs: Any) -> Any:
    return MergeSourceOperator(**{"task_id": "merge", "target": "golden", **RULES, **kwargs})


def execute_operator(operator: Any, answer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Execute an operator with a plain context and return the fake hook and the pushed XComs."""
    fake = FakeSparkJobHook.create_fake(answer)
    monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
    pushed = {}
    task = SimpleNamespace(
        dag_id="d",
        run_id="r",
        task_id="merge",
        map_index=-1,
        task=operator,
        xcom_push=lambda key, value: pushed.update({key: value}),
    )
    events = OutletEventAccessors()
    context = {"ti": task, "run_id": "r", "outlet_events": events}
    return fake, pushed, events, operator.execute(context)


def test_every_problem_of_literal_arguments_is_named_at_parse_time() -> None:
    """One error has all problems of the literal arguments, each with its path."""
    with pytest.raises(ConfigError) as refused:
        build_operator(
            identity="second",
            max_merged=0,
            equality=[["eq", "c.email", "x.mail"]],
            warehouse="relative",
            dry_run="yes",
            conf=["spark.x"],
            openlineage_inject_parent_job_info="yes",
        )

    assert {problem.path for problem in refused.value.problems} == {
        "openlineage_inject_parent_job_info",
        "identity",
        "max_merged",
        "equality[0]",
        "warehouse",
        "dry_run",
        "conf",
    }


@pytest.mark.parametrize("name", ["preserve_null_values", "equality_set"])
def test_an_argument_that_does_not_exist_is_refused(name: Any) -> None:
    """An unknown argument is rejected, because it would have no effect."""
    with pytest.raises(ConfigError, match=f"{name}: unknown argument"):
        build_operator(**{name: True})


def test_the_constructor_is_deterministic() -> None:
    """Two parses of one DAG file give the same task, so Airflow creates no new version of the DAG."""
    fields = MergeSourceOperator.template_fields

    first, second = build_operator(), build_operator()

    assert [getattr(first, name) for name in fields] == [getattr(second, name) for name in fields]
    assert (first.outlets, first.inlets) == (second.outlets, second.inlets)


def test_literal_datasets_become_inlets_and_the_target_an_outlet() -> None:
    """Literal datasets are inlets and the target is an outlet, from the arguments alone."""
    operator = build_operator(
        datasets=["crm c", "/lake/erp e", (Asset("mine", uri="s3://lake/web"), "w")], equality=[]
    )

    assert [asset.uri for asset in operator.inlets] == [
        "merge://warehouse/crm",
        "file:///lake/erp",
        "s3://lake/web",
    ]
    assert [asset.uri for asset in operator.outlets] == ["merge://warehouse/golden"]
    assert operator.datasets == ["crm c", "/lake/erp e", "s3://lake/web w"]


@pytest.mark.parametrize(
    "arguments",
    [{"target": "golden_{{ ds }}"}, {"warehouse": "/lake/{{ ds }}"}, {"emit_asset": False}],
    ids=["templated target", "templated warehouse", "switched off"],
)
def test_no_outlet_is_declared_where_none_is_known_or_wanted(arguments: Any) -> None:
    """No outlet is declared for a template or if assets are disabled.

    An asset with an unrendered template as name would be another dataset.
    """
    assert build_operator(**arguments).outlets == []


def test_the_request_says_what_where_for_whom_and_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has the given arguments, without those that were not given."""
    operator = build_operator(
        warehouse="/lake", full_refresh=True, conf={"spark.x": 1}, spark_conn_id="cluster"
    )

    fake, _, _, _ = execute_operator(operator, JobResult(report=build_report()), monkeypatch)

    (request,) = fake.requests
    assert fake.init_arguments == [("cluster", {"spark.x": 1})]
    assert (request.job, request.until, request.full_refresh) == ("merge_source", "commit", True)
    assert request.warehouse == "/lake"
    assert request.run.model_dump() == {
        "dag_id": "d", "run_id": "r", "task_id": "merge", "map_index": -1, "clear_number": 0,
    }  # fmt: skip
    assert request.config["equality"] == [["eq", "c.email", "e.mail"]]
    assert not {"max_merged", "initial_datasets", "entity_column"} & set(request.config)


def test_a_run_with_changes_reports_and_emits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is the return value and an XCom, and its main fields are the payload of the asset event."""
    _, pushed, events, returned = execute_operator(
        build_operator(warehouse="/lake"), JobResult(report=build_report()), monkeypatch
    )

    (event,) = events.values()
    assert returned == pushed["merge_report"] == REPORT
    assert event.extra["version"] == 3
    assert event.extra["run"] == "r"


def test_a_run_without_changes_takes_its_outlet_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without changes removes its outlet, so that it creates no asset event.

    The list of outlets of the DAG is not changed.
    """
    operator = build_operator(warehouse="/lake")
    declared = operator.outlets

    _, _, events, _ = execute_operator(operator, build_unchanged(), monkeypatch)

    assert operator.outlets == []
    assert len(declared) == 1
    assert len(events) == 0


def test_a_report_that_is_too_long_loses_its_largest_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report above the limit is truncated at its largest parts.

    What is stored in Airflow's database is below four kibibytes and names what is missing.
    """
    long = {
        **REPORT,
        "details": {"largest": ["x" * 100] * 60, "cluster_sizes": {"1": 2}},
        "warnings": ["short"],
    }

    _, _, _, returned = execute_operator(
        build_operator(warehouse="/lake"), JobResult(report=build_report(**long)), monkeypatch
    )

    assert len(json.dumps(returned)) <= 4096
    assert returned == {**long, "details": {"cluster_sizes": {"1": 2}}, "truncated": ["details.largest"]}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (JobFailure(code="config", message="no", retryable=False), AirflowFailException),
        (JobFailure(code="data", message="no", retryable=False), AirflowFailException),
        (SetupError("no Java"), AirflowFailException),
        (ConflictError("too late"), AirflowException),
        (JobError("gone"), AirflowException),
        (JobFailure(code="job", message="no", retryable=True, trace="Traceback …"), AirflowException),
    ],
    ids=["config", "data", "setup", "conflict", "gone", "job"],
)
def test_only_errors_that_another_try_can_mend_are_retried(
    answer: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only errors that can be temporary are retried.

    Airflow never retries an AirflowFailException, and retries an AirflowException.
    """
    with pytest.raises(AirflowException) as failed:
        execute_operator(build_operator(warehouse="/lake"), answer, monkeypatch)

    assert type(failed.value) is kind


def test_a_bare_id_without_warehouse_is_refused_before_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare ID without a warehouse is rejected before Spark starts.

    The error names every dataset without a location, and the ways to configure one.
    """
    monkeypatch.setattr(_spark_job, "find_warehouse", lambda _: None)

    with pytest.raises(AirflowFailException) as failed:
        execute_operator(build_operator(), JobResult(report=build_report()), monkeypatch)

    assert "merge_store" in str(failed.value)
    assert all(path in str(failed.value) for path in ("target", "datasets[0]", "datasets[1]"))


def test_killing_the_task_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """on_kill is passed to the hook that runs the job."""
    operator = build_operator(warehouse="/lake")
    fake, *_ = execute_operator(operator, JobResult(report=build_report()), monkeypatch)

    operator.on_kill()

    assert fake.killed == 1


def test_killing_before_the_start_is_harmless() -> None:
    """on_kill has no effect before the task has started a child process."""
    assert build_operator().on_kill() is None


def list_names(lineage: Any) -> Any:
    """Return the names of the inputs and of the outputs."""
    return [[dataset.name for dataset in datasets] for datasets in (lineage.inputs, lineage.outputs)]


def test_every_event_names_the_same_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lineage names the datasets of the configuration before and after the run; the report adds versions."""
    operator = build_operator(warehouse="/lake")
    started = operator.get_openlineage_facets_on_start()
    fields = ({"name": "email", "type": "string"},)
    datasets = {"/lake/crm": DatasetDescription(fields=fields)}

    execute_operator(operator, JobResult(report=build_report(), datasets=datasets), monkeypatch)

    completed = operator.get_openlineage_facets_on_complete(None)
    assert list_names(started) == list_names(completed) == [["/lake/crm", "/lake/erp"], ["/lake/golden"]]
    assert started.inputs[0].facets == {}
    assert completed.inputs[0].facets["version"].datasetVersion == "7"
    assert completed.inputs[0].facets["schema"].fields[0].name == "email"


def test_a_failed_run_names_its_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event of a failure names the same datasets as the one of the start, although there is no report."""
    operator = build_operator(warehouse="/lake")
    failure = JobFailure(code="data", message="duplicate output id 'a1'", retryable=False)
    with pytest.raises(AirflowFailException):
        execute_operator(operator, failure, monkeypatch)

    failed = operator.get_openlineage_facets_on_complete(None)

    assert list_names(failed) == list_names(operator.get_openlineage_facets_on_start())
    assert failed.outputs[0].facets == {}


def test_rendered_templates_are_read_without_changing_the_operator() -> None:
    """Lineage reads rendered text as the run does, and leaves the arguments to the run."""
    operator = build_operator(warehouse="/lake", datasets="{{ params.datasets }}")
    operator.datasets = '["crm c", "erp e"]'  # as Airflow renders it

    lineage = operator.get_openlineage_facets_on_start()

    assert list_names(lineage) == [["/lake/crm", "/lake/erp"], ["/lake/golden"]]
    assert operator.datasets == '["crm c", "erp e"]'


def test_wrong_arguments_have_no_lineage() -> None:
    """For arguments that the run will refuse, the inlets and outlets of the task are all that is known."""
    operator = build_operator(warehouse="/lake", identity="{{ params.identity }}")
    operator.identity = "second"

    assert operator.get_openlineage_facets_on_start() is None


@pytest.mark.parametrize("is_enabled", [True, False])
def test_datasets_are_described_only_for_lineage(is_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenLineage, the job does not read the schemas that only lineage needs."""
    if is_enabled:
        monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')

    fake, *_ = execute_operator(
        build_operator(warehouse="/lake"), JobResult(report=build_report()), monkeypatch
    )

    assert fake.requests[0].describes_datasets is is_enabled


def test_schemas_do_not_reach_the_xcom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of columns are part of the lineage, and not of the report that the XCom holds."""
    fields = tuple({"name": f"column_{number}", "type": "string"} for number in range(500))
    result = JobResult(report=build_report(), datasets={"/lake/golden": DatasetDescription(fields=fields)})
    operator = build_operator(warehouse="/lake")

    _, pushed, _, returned = execute_operator(operator, result, monkeypatch)

    assert returned == pushed["merge_report"] == REPORT
    (output,) = operator.get_openlineage_facets_on_complete(None).outputs
    assert len(output.facets["schema"].fields) == 500


PIPE = {
    "_id": "person",
    "type": "pipe",
    "source": {
        "type": "merge",
        "version": 2,
        "datasets": ["crm c", "erp e"],
        "equality": [["eq", "c.email", "e.mail"]],
        "comment": "from the portal",
    },
}


def test_a_pipe_becomes_an_operator() -> None:
    """The ID of a pipe is the target of the operator, and its source has the arguments."""
    operator = MergeSourceOperator.from_pipe(PIPE, task_id="merge")

    assert (operator.target, operator.version) == ("person", 2)
    assert operator.datasets == ["crm c", "erp e"]


def test_an_argument_beside_a_pipe_wins() -> None:
    """An argument in the DAG takes precedence over the one in the pipe."""
    operator = MergeSourceOperator.from_pipe(PIPE, task_id="merge", target="other", identity="first")

    assert (operator.target, operator.identity) == ("other", "first")


def test_every_problem_of_a_pipe_is_named() -> None:
    """Every problem of a pipe is reported.

    An unknown property, or another value than the only supported one, is rejected and not ignored.
    """
    source = {**PIPE["source"], "type": "embedded", "equality_set": [], "supports_since": False}

    with pytest.raises(ConfigError) as refused:
        MergeSourceOperator.from_pipe({**PIPE, "source": source}, task_id="merge")

    assert {problem.path for problem in refused.value.problems} == {"type", "equality_set", "supports_since"}
