"""Define the base operator: check arguments, submit the Spark job, report the result."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import Asset, BaseOperator, Context
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.log import redact  # type: ignore[attr-defined] # as Airflow masks its logs

from airflow_merge_provider.core import risk
from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.change_plan.summary import ChangeSummary
from airflow_merge_provider.core.errors import (
    ConfigError,
    DataError,
    JobError,
    MergeError,
    Problem,
    SetupError,
)
from airflow_merge_provider.core.failure_report import FAILURE_KEY, build_failure_report
from airflow_merge_provider.core.lineage import describe_run
from airflow_merge_provider.core.model import Config
from airflow_merge_provider.core.population import DEFAULT_OFFSET, Population, build_population
from airflow_merge_provider.core.protocol import (
    DatasetDescription,
    Job,
    JobFailure,
    JobRequest,
    choose_approval,
)
from airflow_merge_provider.core.report import (
    PLAN_KEY,
    REPORT_KEY,
    Report,
    build_event_extra,
    truncate_plan,
    truncate_report,
)
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.core.run_sentence import summarize_run
from airflow_merge_provider.core.source_offset import normalize_uri
from airflow_merge_provider.hooks.population import find_marked, mark_populated
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.hooks.warehouse import WarehouseHook, find_warehouse
from airflow_merge_provider.lineage.settings import add_parent_run, is_openlineage_enabled
from airflow_merge_provider.links.merge_report import MergeReportLink, find_error_page
from airflow_merge_provider.operators import _review
from airflow_merge_provider.operators._arguments import (
    RefusedArgumentsError,
    as_text,
    check_argument_names,
    check_references,
    choose_renderers,
    find_asset,
    find_setting_problems,
    is_literal,
    list_assets,
    parse_rendered,
    takes_text,
)
from airflow_merge_provider.operators._dag import find_run_after, list_conflicts, run_token

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors.base import OperatorLineage

_REVIEW_FIELDS = ("plan", "approve", "on_reject")
_CONNECTION_FIELDS = ("spark_conn_id", "merge_store_conn_id")
# Arguments of every operator whose value is a text, also if it looks like a number.
_TEXT_FIELDS = frozenset({
    "warehouse", "set_initial_offset", risk.ON_RISK, *_REVIEW_FIELDS, *_CONNECTION_FIELDS
})  # fmt: skip
# By default, Airflow masks no values of structs, maps and lists in rows.
_REDACTED_MAX_DEPTH = 100


class SparkJobOperator(BaseOperator):
    """Run one Spark job and report its result; a subclass sets the job and its configuration.

    Literal arguments are checked when the DAG is parsed, templates and results of other tasks before Spark
    starts. Configuration, data and setup errors and an exceeded change limit fail the task without a retry;
    other errors can be retried. A retry that finds its own commit reports it instead of merging again.

    :param warehouse: the location of bare ids; by default the connection's or Airflow's setting. (templated)
    :param merge_store_conn_id: the connection with the warehouse and its credentials; the default one may not
        exist. (templated)
    :param spark_conn_id: a connection of type ``spark`` or ``spark_connect``; by default ``spark_default``,
        or Spark on this machine if that connection does not exist. (templated)
    :param conf: Spark settings, which override those of this package; None is not set. (templated)
    :param dry_run: do everything except the commit and report what would change. (templated)
    :param full_refresh: process all input, not only the changes since the last run. (templated)
    :param max_change_ratio: the largest share of the target's rows, 0 to 1, that a run may write; the first
        run has no limit. (templated)
    :param on_risk: what a run above this limit does: ``fail``, or ``ask`` a person in the Airflow UI to
        approve its plan. (templated)
    :param plan: ``check``: check the configuration against the tables without reading rows; ``save``: save
        the rows that the run would change as ``<target>__plan``, and commit nothing; ``apply``: commit the
        newest saved plan exactly, or fail if it is outdated; the result of ``ApprovePlanOperator``: the same
        with the approved plan. (templated)
    :param approve: ``always``: ask a person to approve the plan of each run that writes. (templated)
    :param on_reject: what a run does if its plan is rejected, or not approved in time: ``skip`` or ``fail``.
        (templated)
    :param approval_timeout: how long a person has for the answer; by default ``execution_timeout``.
    :param emit_asset: update the target's asset when a run changed it.
    :param allow_concurrent_writes: let other tasks of the DAG write the target at the same time: one fails.
    :param allow_single_writer: write where the second of two writers cannot be refused: on S3 or Google Cloud
        with another log store, or on a file system without hard links.
    :param deletion_vectors: ``auto``: new tables have deletion vectors, which make changes cheap; ``False``:
        they have none, so that readers without support for them can read the tables.
    :param openlineage_inject_parent_job_info: overrides ``[openlineage] spark_inject_parent_job_info``.
    :param set_initial_offset: when the target becomes populated: ``if-source-populated``, ``never``,
        ``always``, ``initially`` or ``onload``. (templated)
    """

    job: ClassVar[Job]
    config_class: ClassVar[type[Config]]
    config_fields: ClassVar[tuple[str, ...]]
    guarded: ClassVar[bool] = True  # whether the job checks the change limit before it commits
    is_check: ClassVar[bool] = False  # whether no run of the operator writes
    is_only_writer: ClassVar[bool] = True  # whether concurrent runs that write the target conflict

    template_fields: Sequence[str] = (
        "warehouse",
        *_CONNECTION_FIELDS,
        "conf",
        "dry_run_only",
        "full_refresh",
        "set_initial_offset",
        "max_change_ratio",
        "on_risk",
        *_REVIEW_FIELDS,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"conf": "json"}
    operator_extra_links = (MergeReportLink(),)
    ui_color = "#e3edf9"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Take the arguments of an operator, all of them templated, from its configuration."""
        super().__init_subclass__(**kwargs)
        if "config_class" in vars(cls):
            cls.config_fields = cls.config_class.list_arguments()
            cls.template_fields = (*cls.config_fields, *SparkJobOperator.template_fields)
            own_renderers = choose_renderers(cls.config_class)
            cls.template_fields_renderers = {**SparkJobOperator.template_fields_renderers, **own_renderers}

    def __init__(
        self,
        *,
        warehouse: str | None = None,
        merge_store_conn_id: str = WarehouseHook.default_conn_name,
        spark_conn_id: str = "spark_default",
        conf: Mapping[str, Any] | None = None,
        dry_run: bool | str = False,
        full_refresh: bool | str = False,
        max_change_ratio: float | str | None = None,
        on_risk: str = "fail",
        plan: str | Mapping[str, Any] | None = None,
        approve: str | None = None,
        on_reject: str = "skip",
        approval_timeout: timedelta | None = None,
        emit_asset: bool = True,
        allow_concurrent_writes: bool = False,
        allow_single_writer: bool = False,
        deletion_vectors: str | bool = "auto",
        set_initial_offset: str = DEFAULT_OFFSET,
        openlineage_inject_parent_job_info: bool | None = None,
        **kwargs: Any,
    ) -> None:
        check_argument_names(type(self), BaseOperator, kwargs)
        super().__init__(**kwargs)
        self.warehouse = warehouse
        self.merge_store_conn_id = merge_store_conn_id
        self.spark_conn_id = spark_conn_id
        self.conf = conf
        self.dry_run_only = dry_run  # BaseOperator has a method dry_run
        self.full_refresh = full_refresh
        self.max_change_ratio = max_change_ratio
        self.on_risk = on_risk
        self.plan = plan
        self.approve = approve
        self.on_reject = on_reject
        self.approval_timeout = approval_timeout
        self.emit_asset = emit_asset
        self.allow_concurrent_writes = allow_concurrent_writes
        self.allow_single_writer = allow_single_writer
        self.deletion_vectors = deletion_vectors
        self.set_initial_offset = set_initial_offset
        self.openlineage_inject_parent_job_info = openlineage_inject_parent_job_info
        self._target_asset: Asset | None = None
        self._templated: tuple[str, ...] = ()
        self._report: Report | None = None
        self._descriptions: Mapping[str, DatasetDescription] = {}
        self._hook: SparkJobHook | None = None
        self._request: JobRequest | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job and return its report.

        :raises AirflowFailException: when a retry cannot help.
        :raises AirflowException: when a retry can help.
        """
        return self._run_and_report(context)

    def after_review(
        self, context: Context, event: Mapping[str, Any], reviewed: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Resume after a review: the run commits exactly the plan that was shown to the person.

        :raises AirflowSkipException: when the plan is rejected, or nobody answered in time.
        :raises AirflowFailException: the same, if ``on_reject`` is ``fail``.
        """
        try:
            approved = _review.choose_plan(event, reviewed, self.on_reject)
        except AirflowFailException as error:
            self._report_failure(context, DataError(str(error)))
            raise
        return self._run_and_report(context, approved)

    def _run_and_report(self, context: Context, approved: PlanChoice | None = None) -> dict[str, Any]:
        try:
            report = self._run_job(context, approved)
        except AirflowTaskTimeout:
            self.on_kill()
            error = JobError(f"the task was stopped after its execution_timeout of {self.execution_timeout}")
            self._report_failure(context, error)
            raise
        except MergeError as error:
            failure = error
            if isinstance(error, RiskError) and error.report.plan is not None:
                if approved is not None or isinstance(self.plan, Mapping):
                    failure = _review.build_outdated_error(error)
                elif choose_approval(self.approve, self.on_risk) != "never":
                    self._ask_for_approval(context, error, error.report.plan)
            self._report_failure(context, failure)
            error_class = AirflowException if failure.retryable else AirflowFailException
            # Airflow logs the traceback of this exception; that of an expected error would only repeat it.
            raise error_class(str(failure)) from None
        # Lineage uses the full report; the report for the XCom may be truncated.
        self._report = report
        xcom_report = self._push_report(context, report)
        self._emit_asset(xcom_report, context)
        return xcom_report.as_json()

    def _ask_for_approval(self, context: Context, error: RiskError, plan: ChangeSummary) -> NoReturn:
        self._push_report(context, error.report)
        question = _review.build_question(context, error.report, plan, error.problems[0].message)
        timeout = self.approval_timeout or self.execution_timeout
        try:
            _review.ask_for_approval(context, question, timeout, self.after_review.__name__)
        except AirflowFailException as refusal:
            self._report_failure(context, DataError(str(refusal)))
            raise refusal from None

    def _report_failure(self, context: Context, error: MergeError) -> None:
        """Store what is known of a failed run as XComs, and log it; the error of the run is never hidden."""
        try:
            self._store_failure(context, error)
        except Exception as report_error:  # noqa: BLE001 - e.g. the task has been marked as failed
            self.log.warning("the XCom %r could not be written: %s", FAILURE_KEY, report_error)

    def _store_failure(self, context: Context, error: MergeError) -> None:
        state = None
        if self._hook is not None and self._request is not None and not isinstance(error, SetupError):
            state = self._hook.find_target_state(self._request)
        report = build_failure_report(
            error,
            job=self.job,
            dataset=_name_target(getattr(self, self.config_class.output_field, None)),
            dry_run=self._is_dry_run or self.is_check,
            state=state,
            page=find_error_page(),
        )
        # Logged separately, because Airflow shows the exception at the end of a traceback.
        for line in report.list_log_lines():
            self.log.error("%s", line)
        value = redact(report.model_dump(mode="json"), max_depth=_REDACTED_MAX_DEPTH)
        context["ti"].xcom_push(key=FAILURE_KEY, value=value)
        if isinstance(error, RiskError):
            self._push_plan(context, error.report)

    def _push_report(self, context: Context, report: Report) -> Report:
        """Store the report and the plan as XComs, and return the report as it is stored."""
        summary = summarize_run(report, JOBS[self.job].describe_run)
        report = report.model_copy(update={"summary": summary})
        xcom_report = truncate_report(report)
        if xcom_report.truncated:
            self.log.info("The report is too long for an XCom; full report: %s", json.dumps(report.as_json()))
        context["ti"].xcom_push(key=REPORT_KEY, value=xcom_report.as_json())
        self._push_plan(context, report)
        self.log.info("report: XCom %r, and the tab %r of this task instance", REPORT_KEY, "Merge report")
        return xcom_report

    def _push_plan(self, context: Context, report: Report) -> None:
        if report.plan is not None:
            plan = truncate_plan(report.plan)
            context["ti"].xcom_push(key=PLAN_KEY, value=plan.model_dump(mode="json"))

    @property
    def _is_dry_run(self) -> bool:
        """Whether the run commits nothing."""
        return bool(self.dry_run_only) or self.plan in ("check", "save")

    def on_kill(self) -> None:
        """End the Spark process when the task is stopped."""
        if self._hook is not None:
            self._hook.on_kill()

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any] | None:
        """Return the datasets of the run for OpenLineage; None if the arguments are invalid."""
        from airflow_merge_provider.lineage.facets import build_lineage  # noqa: PLC0415

        rendered = copy.copy(self)
        rendered._render_natively()  # noqa: SLF001 - a copy of this operator
        try:
            run = describe_run(
                self.job,
                rendered._parse_config()[1],  # noqa: SLF001
                rendered.warehouse or find_warehouse(rendered.merge_store_conn_id),
                dry_run=rendered._is_dry_run,  # noqa: SLF001
                full_refresh=bool(rendered.full_refresh),
                report=self._report,
                descriptions=self._descriptions,
            )
        except MergeError:
            return None
        return build_lineage(run)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Return the same datasets with what the run did; without that, if the run failed or was skipped."""
        return self.get_openlineage_facets_on_start()

    def list_awaited(self) -> list[Any]:
        """Return the datasets that must be populated before the source is; from literal arguments only."""
        population = self._build_population(self._parse_config()[0])
        return list(population.datasets) if population else []

    def list_schedule_warnings(self, config: Any) -> list[str]:
        """Return warnings about a schedule of the DAG that does not suit the configuration."""
        return []

    def _await_sources(self, config: Any) -> None:
        """Wait for the sources before Spark starts, if the configuration requires it."""

    def _build_population(self, config: Any, marked: Sequence[str] = ()) -> Population | None:
        """Return the inputs for the target's population flag; None where the target is not a table."""
        offset: Any = self.set_initial_offset
        return build_population(config, set_initial_offset=offset, marked=marked)

    def _declare_assets(self, target: Any, sources: Sequence[Any]) -> None:
        """Check literal arguments and declare assets; a subclass calls this at the end of its constructor.

        :raises RefusedArgumentsError: with every problem of the literal arguments.
        """
        for name in self.config_fields:
            setattr(self, name, as_text(getattr(self, name)))
        self._templated = tuple(name for name in self.template_fields if not is_literal(getattr(self, name)))
        self._check_literals()
        self._takes_result = _review.is_task_result(self.plan)
        assets = (find_asset(source, self.warehouse) for source in sources)
        self.add_inlets([asset for asset in assets if asset])
        asset = find_asset(target, self.warehouse)
        self.written_uri = normalize_uri(asset.uri) if asset and self.is_only_writer else None
        if self.emit_asset and asset:
            self._target_asset = asset
            self.add_outlets([asset])

    def _check_literals(self) -> None:
        """Check the arguments, if all of them are literal."""
        if self._templated:
            return
        try:
            self._parse_config()
        except ConfigError as error:
            raise RefusedArgumentsError.from_task(self.task_id, error.problems) from None

    def resolve_template_files(self) -> None:
        """Check what requires the complete DAG; Airflow calls this method once the DAG is complete.

        :raises RefusedArgumentsError: if another task may write the target at the same time.
        """
        super().resolve_template_files()
        if problems := list(list_conflicts(self)):
            raise RefusedArgumentsError.from_task(self.task_id, problems)

    def _run_job(self, context: Context, approved: PlanChoice | None) -> Report:
        self._render_natively()
        config, arguments = self._parse_config()
        if _review.is_unapproved(self.plan, of_task=self._takes_result):
            self.log.info("plan: no plan was approved; if the run changes rows, it asks a person")
            self.plan, self.approve = None, "always"
        warehouse = self.warehouse or find_warehouse(self.merge_store_conn_id)
        check_references({config.output_field: "", **config.list_datasets()}, warehouse)
        for warning in (*config.list_warnings(), *self.list_schedule_warnings(config)):
            self.log.warning("%s", warning)
        self._await_sources(config)
        request = JobRequest(
            job=self.job,
            config=arguments,
            run=run_token(context),
            warehouse=warehouse,
            started_at=time.time_ns() // 1000,
            run_after=find_run_after(context),
            until="plan" if self.plan == "check" else "transform" if self._is_dry_run else "commit",
            full_refresh=bool(self.full_refresh),
            population=self._build_population(config, find_marked(self.inlets, context)),
            max_change_ratio=self.max_change_ratio,
            save_plan=self.plan == "save",
            approval=choose_approval(self.approve, self.on_risk),
            apply_plan=approved or _review.parse_plan_choice(self.plan),
            describes_datasets=is_openlineage_enabled(),
            allow_single_writer=self.allow_single_writer,
            deletion_vectors=bool(self.deletion_vectors),
        )
        conf = add_parent_run(self.conf, context, requested=self.openlineage_inject_parent_job_info)
        self._hook, self._request = (
            SparkJobHook(self.spark_conn_id, self.merge_store_conn_id, conf=conf),
            request,
        )
        outcome = self._hook.submit(request)
        if isinstance(outcome, JobFailure):
            if outcome.trace:
                self.log.error("%s", outcome.trace)
            raise outcome.to_error()
        self._descriptions = outcome.datasets
        return outcome.report

    def _parse_config(self) -> tuple[Config, dict[str, Any]]:
        """Parse the arguments and report all problems at once."""
        arguments = {name: getattr(self, name) for name in self.config_fields}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        problems = find_setting_problems(self)
        try:
            config = self.config_class.parse(arguments)
        except ConfigError as error:
            raise ConfigError.from_problems([*error.problems, *problems]) from None
        writes_files = not problems and self._build_population(config) is None
        if writes_files and self.set_initial_offset != DEFAULT_OFFSET:
            hint = "leave it out: files count as populated as soon as they exist"
            problems = [Problem("set_initial_offset", "value", "is supported only for Delta targets", hint)]
        if problems:
            raise ConfigError.from_problems(problems)
        return config, arguments

    def _render_natively(self) -> None:
        """Convert rendered text to booleans, numbers and lists, unless the argument is text."""
        for name in self._templated:
            value = getattr(self, name)
            is_text = name in _TEXT_FIELDS or takes_text(self.config_class, name)
            if isinstance(value, str) and not is_text:
                setattr(self, name, parse_rendered(value))
            elif isinstance(value, (list, tuple, Mapping)) or list_assets(value):
                setattr(self, name, as_text(value))

    def _emit_asset(self, report: Report, context: Context) -> None:
        """Update the target's asset; a run without changes removes the outlet and still succeeds."""
        if self._target_asset is None:
            return
        if not self._is_dry_run:
            mark_populated(self._target_asset, report, context)
        if (report.changed or report.became_populated) and not self._is_dry_run:
            context["outlet_events"][self._target_asset].extra = build_event_extra(report, context["run_id"])
            return
        task = context["ti"].task
        # Assign a new list: the old one belongs to the DAG, which this process may use again.
        task.outlets = [item for item in task.outlets if getattr(item, "uri", None) != self._target_asset.uri]


def _name_target(target: Any) -> str | None:
    """Return the name of a target as it is configured; None if it is not known."""
    if isinstance(target, Mapping):
        target = target.get("id") or target.get("path")
    text = as_text(target)
    return text if isinstance(text, str) else None
