"""Tests of operators whose run exceeds the change limit: fail, or ask a person and continue."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.api_fastapi.execution_api.datamodels.hitl import HITLDetailRequest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_merge_provider.core.errors import ConfigError, RiskError
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.core.risk import Risk
from airflow_merge_provider.jobs.run.entry import build_failure
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.operators.scd2 import Scd2CheckOperator
from tests.fakes import REPORT, FakeSparkJobHook

RULES = {"datasets": ["crm c", "erp e"], "equality": [["eq", "c.email", "e.mail"]], "warehouse": "/lake"}
YES = {"chosen_options": ["Apply"], "responded_by_user": {"id": "7", "name": "ada"}, "timedout": False}


def build_operator(**kwargs: Any) -> Any:
    return MergeSourceOperator(**{"task_id": "merge", "target": "golden", **RULES, **kwargs})


def raise_risk(rows: Any = 30) -> Any:
    try:
        Risk(rows, 100).check_limit(0.2, {**REPORT, "rows": {**REPORT["rows"], "inserted": rows}})
    except RiskError as error:
        return build_failure(error)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace Spark by a prepared answer, and return the requests and a context."""

    def install_answer(answer: Any) -> Any:
        fake = FakeSparkJobHook.create_fake(answer)
        monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
        task = SimpleNamespace(
            id=UUID(int=1),
            dag_id="d",
            run_id="r",
            task_id="merge",
            map_index=-1,
            xcom_push=lambda key, value: None,
        )
        return fake, {"ti": task, "run_id": "r", "outlet_events": OutletEventAccessors()}

    return install_answer


def test_a_risky_run_fails_by_default(answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A run above the change limit fails without retry.

    The limit is part of the request, and the reason is a log line.
    """
    fake, context = answering(raise_risk())

    with pytest.raises(AirflowFailException, match="30 rows to a target of 100 rows"):
        build_operator(max_change_ratio=0.2).execute(context)

    output = capsys.readouterr()
    (line,) = [
        line for line in (output.out + output.err).splitlines() if "30 rows to a target of 100 rows" in line
    ]
    assert "error" in line
    assert fake.requests[0].max_change_ratio == 0.2


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Answer as the Airflow server does: keep the first question of a task and return the kept one."""
    questions = []

    def answer_message(msg: Any) -> Any:
        questions.append(HITLDetailRequest.model_validate_json(msg.model_dump_json()))
        return questions[0]

    supervisor = SimpleNamespace(send=answer_message)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return questions


def test_a_person_is_asked_with_the_figures(answering: Any, server: Any) -> None:
    """The task waits for the answer without a process. No answer in time counts as a rejection."""
    _, context = answering(raise_risk())
    task = build_operator(max_change_ratio=0.2, on_risk="ask", execution_timeout=timedelta(hours=1))

    with pytest.raises(TaskAwaitingInput) as waiting:
        task.execute(context)

    (question,) = server
    assert question.options == ["Apply", "Reject"]
    assert question.defaults == ["Reject"]
    assert question.subject.startswith("golden: the run would write 30 rows")
    assert "| rows: inserted | 30 |" in question.body
    assert waiting.value.method_name == "after_review"
    assert waiting.value.kwargs == {"reviewed": {"ratio": 0.3}}
    assert waiting.value.timeout == timedelta(hours=1)


def test_a_question_that_shows_other_figures_is_not_asked(answering: Any, server: Any) -> None:
    """A question with other figures than the stored one is not asked.

    The person would approve figures that nobody has seen. The same figures may be asked again.
    """
    task = build_operator(max_change_ratio=0.2, on_risk="ask")
    for _ in range(2):
        with pytest.raises(TaskAwaitingInput):
            task.execute(answering(raise_risk())[1])

    with pytest.raises(
        AirflowFailException, match=r"write 40 rows .* an earlier try requested approval for different counts"
    ):
        task.execute(answering(raise_risk(40))[1])


def test_a_yes_lets_the_run_write_what_was_seen(answering: Any) -> None:
    """After approval the limit is the share that was shown, and the report has the name of the person."""
    fake, context = answering(JobResult(report=REPORT))

    report = build_operator(max_change_ratio=0.2, on_risk="ask").after_review(context, YES, {"ratio": 0.3})

    assert fake.requests[0].max_change_ratio == 0.3
    assert report["approved_by"] == "ada"


def test_a_run_that_has_grown_meanwhile_fails(answering: Any) -> None:
    """A run that has grown after the question fails.

    The approval covers only what was shown, and a question cannot be changed.
    """
    _, context = answering(raise_risk())

    with pytest.raises(AirflowFailException, match=r"golden: the change has grown .* from 0.25 to 0.3"):
        build_operator(max_change_ratio=0.2, on_risk="ask").after_review(context, YES, {"ratio": 0.25})


@pytest.mark.parametrize(
    "event",
    [
        {**YES, "chosen_options": ["Reject"]},
        {"chosen_options": ["Reject"], "timedout": True},
        {"error": "no response", "error_type": "timeout"},
    ],
    ids=["no", "no answer", "no default"],
)
def test_a_no_writes_nothing_and_emits_nothing(answering: Any, event: Any) -> None:
    """After a rejection the task is skipped without starting Spark or creating an asset event."""
    fake, context = answering(JobResult(report=REPORT))

    with pytest.raises(AirflowSkipException, match="nothing was written"):
        build_operator(max_change_ratio=0.2, on_risk="ask").after_review(context, event, {"ratio": 0.3})

    assert fake.requests == []


def test_an_operator_that_changes_no_rows_refuses_a_limit() -> None:
    """An operator that changes no rows rejects a change limit, because it would have no effect."""
    with pytest.raises(
        ConfigError, match="max_change_ratio: is not supported: this operator changes no rows"
    ):
        Scd2CheckOperator(task_id="check", target="t", warehouse="/lake", max_change_ratio=0.1)
