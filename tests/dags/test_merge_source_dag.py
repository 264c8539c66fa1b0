"""Test MergeSourceOperator in a DAG run in which a fake hook replaces Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, task

from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.core.protocol import JobFailure, JobResult
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from tests.fakes import REPORT, build_report, build_unchanged

pytestmark = pytest.mark.airflow

RULES = {"datasets": ["crm c", "erp e"], "equality": [["eq", "c.email", "e.mail"]], "warehouse": "/lake"}


def build_operator(target: Any, **kwargs: Any) -> Any:
    return MergeSourceOperator(task_id="merge", target=target, **{**RULES, **kwargs})


def list_states(run: Any) -> Any:
    return {task_instance.task_id: str(task_instance.state) for task_instance in run.get_task_instances()}


def pull_xcom(run: Any, key: Any) -> Any:
    return run.get_task_instance("merge").xcom_pull(task_ids="merge", key=key)


def test_a_run_that_changed_something_reports_it_everywhere(
    run_dag: Any, fake_hook: Any, asset_events: Any
) -> None:
    """The return value, merge_report, the asset event and the link all describe the same run."""
    fake_hook(JobResult(report=build_report()))
    with DAG("changed", schedule=None) as dag:
        build_operator("changed_target")

    run = run_dag(dag)

    assert list_states(run) == {"merge": "success"}
    assert pull_xcom(run, "return_value") == pull_xcom(run, "merge_report") == REPORT
    (extra,) = asset_events("file:///lake/changed_target")
    assert extra == {
        "job": "merge_source",
        "run": run.run_id,
        "run_mode": "incremental",
        "version": 3,
        "uri": "/lake/golden",
        "rows": REPORT["rows"],
        "counts": REPORT["counts"],
    }
    assert "/tasks/merge/" in pull_xcom(run, "_link_MergeReportLink")


def test_a_run_that_changed_nothing_emits_no_event_and_goes_on(
    run_dag: Any, fake_hook: Any, asset_events: Any
) -> None:
    """Without changes the task succeeds and emits no asset event, and downstream tasks run."""
    fake_hook(build_unchanged())
    with DAG("unchanged", schedule=None) as dag:

        @task
        def run_after() -> Any:
            return "ran"

        build_operator("unchanged_target") >> run_after()

    run = run_dag(dag)

    assert list_states(run) == {"merge": "success", "run_after": "success"}
    assert asset_events("file:///lake/unchanged_target") == []


def test_the_outlet_is_taken_back_for_one_run_only(run_dag: Any, fake_hook: Any, asset_events: Any) -> None:
    """A run with changes emits its event even if the previous run in the same process emitted none."""
    with DAG("twice", schedule=None) as dag:
        build_operator("twice_target")
    fake_hook(build_unchanged())
    run_dag(dag)
    fake_hook(JobResult(report=build_report()))

    run_dag(dag)

    assert len(asset_events("file:///lake/twice_target")) == 1


def test_a_dry_run_emits_no_event(run_dag: Any, fake_hook: Any, asset_events: Any) -> None:
    """A dry run stops before the commit and emits no event."""
    fake = fake_hook(JobResult(report=build_report(dry_run=True)))
    with DAG("dry", schedule=None) as dag:
        build_operator("dry_target", dry_run=True)

    run = run_dag(dag)

    assert list_states(run) == {"merge": "success"}
    assert fake.requests[0].until == "transform"
    assert asset_events("file:///lake/dry_target") == []


def test_other_outlets_of_the_task_keep_their_events(run_dag: Any, fake_hook: Any, asset_events: Any) -> None:
    """A run without changes withholds the event of the target's asset only; other outlets emit theirs."""
    fake_hook(build_unchanged())
    with DAG("others", schedule=None) as dag:
        build_operator("others_target", outlets=[Asset(uri="x-other://seen")])

    run_dag(dag)

    assert asset_events("file:///lake/others_target") == []
    assert len(asset_events("x-other://seen")) == 1


def test_an_asset_given_as_target_gets_the_event(run_dag: Any, fake_hook: Any, asset_events: Any) -> None:
    """An asset given as target becomes the outlet under its own name; the job gets its dataset."""
    fake = fake_hook(JobResult(report=build_report()))
    mine = Asset("my golden records", uri="file:///lake/mine")
    with DAG("mine", schedule=None) as dag:
        build_operator(mine)

    run_dag(dag)

    assert fake.requests[0].config["target"] == "file:///lake/mine"
    assert len(asset_events("file:///lake/mine")) == 1


def test_templates_are_rendered_before_the_check(run_dag: Any, fake_hook: Any) -> None:
    """Rendered text is converted to the boolean, number or list that the argument takes."""
    fake = fake_hook(JobResult(report=build_report()))
    with DAG("templated", schedule=None, params={"all": True, "most": 7}) as dag:
        build_operator(
            "golden_{{ dag.dag_id }}",
            full_refresh="{{ params.all }}",
            version=2,
            max_merged="{{ params.most }}",
            initial_datasets="{{ ['crm'] | tojson }}",
        )

    run = run_dag(dag)

    request = fake.requests[0]
    assert list_states(run) == {"merge": "success"}
    assert request.full_refresh is True
    assert request.config["target"] == "golden_templated"
    assert request.config["max_merged"] == 7
    assert request.config["initial_datasets"] == ["crm"]


def test_a_wrong_template_fails_before_spark_and_without_retry(run_dag: Any, fake_hook: Any) -> None:
    """Values that cannot be checked at parse time are checked before Spark starts.

    An error is not retried.
    """
    fake = fake_hook(JobResult(report=build_report()))
    with DAG("wrong_template", schedule=None) as dag:
        build_operator("t", identity="{{ 'second' }}", retries=3, retry_delay=timedelta(0))

    run = run_dag(dag)

    assert list_states(run) == {"merge": "failed"}
    assert fake.requests == []


def test_a_data_error_is_not_tried_again(run_dag: Any, fake_hook: Any) -> None:
    """A data error fails the task even if it has retries left."""
    fake = fake_hook(JobFailure(code="data", message="duplicate output id 'a1'", retryable=False))
    with DAG("data_error", schedule=None) as dag:
        build_operator("t", retries=3, retry_delay=timedelta(0))

    run = run_dag(dag)

    assert list_states(run) == {"merge": "failed"}
    assert len(fake.requests) == 1


def test_a_lost_race_is_tried_again_by_the_same_token(run_dag: Any, fake_hook: Any) -> None:
    """A lost race is retried with the same token, so that the retry can find its own commit."""
    fake = fake_hook(ConflictError("another run committed first"))
    with DAG("lost_race", schedule=None) as dag:
        build_operator("t", retries=1, retry_delay=timedelta(0))

    run = run_dag(dag)

    first, second = fake.requests
    assert list_states(run) == {"merge": "failed"}
    assert first.run == second.run


def test_mapped_tasks_have_tokens_of_their_own(run_dag: Any, fake_hook: Any) -> None:
    """Each mapped task instance merges into its own target under its own token."""
    fake = fake_hook(build_unchanged())
    with DAG("mapped", schedule=None) as dag:
        MergeSourceOperator.partial(task_id="merge", **RULES).expand(target=["one", "two"])

    run = run_dag(dag)

    assert {str(task_instance.state) for task_instance in run.get_task_instances()} == {"success"}
    targets = sorted((request.run.map_index, request.config["target"]) for request in fake.requests)
    assert targets == [(0, "one"), (1, "two")]


def test_a_mapped_task_with_wrong_arguments_is_not_tried_again(run_dag: Any, fake_hook: Any) -> None:
    """Wrong arguments of a mapped task, which are checked on the worker, are not retried."""
    fake = fake_hook(build_unchanged())
    with DAG("mapped_wrong", schedule=None) as dag:
        MergeSourceOperator.partial(
            task_id="merge", target="t", retries=2, retry_delay=timedelta(0), **RULES
        ).expand(identity=["second"])

    run = run_dag(dag)

    assert {str(task_instance.state) for task_instance in run.get_task_instances()} == {"failed"}
    assert {task_instance.try_number for task_instance in run.get_task_instances()} == {1}
    assert fake.requests == []


def test_the_result_of_another_task_can_be_an_argument(run_dag: Any, fake_hook: Any) -> None:
    """An XCom argument adds the dependency and is checked when its value is available."""
    fake = fake_hook(JobResult(report=build_report()))
    with DAG("xcom", schedule=None) as dag:

        @task
        def list_datasets() -> Any:
            return ["crm c", "erp e"]

        build_operator("t", datasets=list_datasets())

    run = run_dag(dag)

    assert list_states(run) == {"list_datasets": "success", "merge": "success"}
    assert fake.requests[0].config["datasets"] == ["crm c", "erp e"]


def test_a_bare_id_without_warehouse_says_where_to_set_one(run_dag: Any, fake_hook: Any) -> None:
    """The error lists every dataset without a location before Spark starts, and where to set a warehouse."""
    fake = fake_hook(JobResult(report=build_report()))
    with DAG("no_warehouse", schedule=None) as dag:
        build_operator("t", warehouse=None)

    run = run_dag(dag)

    assert list_states(run) == {"merge": "failed"}
    assert fake.requests == []


def test_the_warehouse_comes_from_the_connection_then_from_the_configuration(
    run_dag: Any, fake_hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's warehouse precedes that of the connection, which precedes that of the configuration."""
    fake = fake_hook(JobResult(report=build_report()))
    with DAG("warehouse", schedule=None) as dag:
        build_operator("t", warehouse=None)
    monkeypatch.setenv("AIRFLOW__MERGE__WAREHOUSE", "/configured")
    run_dag(dag)
    monkeypatch.setenv(
        "AIRFLOW_CONN_MERGE_STORE_DEFAULT", '{"conn_type": "merge_store", "host": "/connected"}'
    )

    run_dag(dag)

    assert [request.warehouse for request in fake.requests] == ["/configured", "/connected"]
