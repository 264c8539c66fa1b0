"""Define the task decorators: operators whose arguments a function computes when the task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.providers.common.compat.sdk import (
    SET_DURING_EXECUTION,
    DecoratedOperator,
    TaskDecorator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import TaskAwaitingInput, TaskDeferred

from airflow_merge_provider.assets import WAREHOUSE_ASSET
from airflow_merge_provider.core.errors import ConfigError, Problem, did_you_mean
from airflow_merge_provider.core.object_store.clients import is_confidential
from airflow_merge_provider.operators._arguments import (
    RefusedArgumentsError,
    as_text,
    is_literal,
    own_parameters,
)
from airflow_merge_provider.operators._spark_job import SparkJobOperator
from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator
from airflow_merge_provider.operators.joiner import JoinerOperator
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.operators.scd2 import Scd2Operator
from airflow_merge_provider.operators.upsert import UpsertOperator

# The XCom with the arguments of a task that waits. Airflow keeps the XComs of a task that it resumes.
ARGUMENTS_KEY = "merge_arguments"
# Arguments that determine the assets and the writers of a DAG, which have to be known when it is parsed.
_OF_THE_DAG = frozenset({"emit_asset", "allow_concurrent_writes"})
# Arguments whose attribute has another name.
_ATTRIBUTES = {"dry_run": "dry_run_only"}


class DecoratedSparkJobOperator(DecoratedOperator, SparkJobOperator):
    """Run an operator with the arguments that a function returns, in addition to fixed arguments.

    The arguments of the decorator are fixed, and declare assets as those of the operator do. The function is
    called once in each try and returns a mapping of the other arguments. They may contain Jinja templates, as
    the command of ``@task.bash``, which are rendered once. Then all arguments are checked as literal ones.

    If the task waits (for a person, for its sources, for files), it continues with the same arguments: they
    are in its XCom ``merge_arguments``, and the function is not called again. A retry calls it again.
    """

    operator_class: type[SparkJobOperator]
    # Airflow shows the arguments of the run as rendered templates.
    overwrite_rtif_after_execution = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Any = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        parameters = own_parameters(self.operator_class, BaseOperator)
        self._fixed_names = frozenset(kwargs) & frozenset(parameters)
        known_names = {*kwargs, *(kwargs.get("default_args") or {})}
        for name, parameter in parameters.items():
            if parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY:
                kwargs |= {} if name in known_names else {name: SET_DURING_EXECUTION}
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Call the function, run the job with what it returns, and return the report.

        :raises RefusedArgumentsError: with every problem of the arguments.
        """
        computed = self._apply_arguments(self._compute_arguments(context), context)
        with _store_if_waiting(computed, context):
            report: dict[str, Any] = super().execute(context)
            return report

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a wait with the arguments that the function has returned before it.

        :raises AirflowFailException: if these arguments are not stored any more.
        """
        if not hasattr(self, next_method):  # The wait has failed.
            return super().resume_execution(next_method, next_kwargs, context)
        instance = context["ti"]
        arguments = instance.xcom_pull(key=ARGUMENTS_KEY, map_indexes=instance.map_index)
        if arguments is None:
            message = "is missing: the task cannot continue with the arguments with which it has waited"
            raise RefusedArgumentsError.from_task(
                self.task_id, [Problem(f"XCom {ARGUMENTS_KEY!r}", "missing", message, "clear the task")]
            )
        computed = self._apply_arguments(arguments)
        with _store_if_waiting(computed, context):
            return super().resume_execution(next_method, next_kwargs, context)

    def _check_literals(self) -> None:
        """Check nothing: the arguments are complete only when the function has returned the others."""

    def _compute_arguments(self, context: Context) -> Mapping[str, Any]:
        context_merge(context, self.op_kwargs)
        arguments = self.python_callable(
            *self.op_args, **determine_kwargs(self.python_callable, self.op_args, context)
        )
        if not isinstance(arguments, Mapping):
            message = f"must be a mapping of arguments of {self.operator_class.__name__}, not {arguments!r}"
            raise RefusedArgumentsError.from_task(self.task_id, [Problem("return value", "type", message)])
        return arguments

    def _apply_arguments(
        self, arguments: Mapping[str, Any], context: Context | None = None
    ) -> dict[str, Any]:
        """Set computed arguments, rendered with a ``context``, and return those that the operator accepts.

        :raises RefusedArgumentsError: with every problem of all arguments.
        """
        problems = [problem for name in arguments if (problem := self._find_name_problem(name))]
        wrong_names = {problem.path for problem in problems}
        problems += _find_confidential_settings(arguments.get("conf"))
        computed = {name: value for name, value in arguments.items() if str(name) not in wrong_names}
        templated = set(self._templated)
        for name, value in computed.items():
            attribute = _ATTRIBUTES.get(name, name)
            rendered = value if context is None else self.render_template(value, context)
            setattr(self, attribute, as_text(rendered))
            templated.discard(attribute)
            if context is not None and not is_literal(value):
                templated.add(attribute)
        self._templated = tuple(templated - set(DecoratedOperator.template_fields))
        self._render_natively()
        # They are native values now: a result that looks like a template is not parsed again.
        self._templated = ()
        try:
            self._copy_arguments(self._build_operator())
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise RefusedArgumentsError.from_task(self.task_id, problems)
        return {name: getattr(self, _ATTRIBUTES.get(name, name)) for name in computed}

    def _build_operator(self) -> SparkJobOperator:
        """Build the operator from the complete arguments, which its constructor checks and converts."""
        values = {name: getattr(self, attribute) for name, attribute in self._list_attributes().items()}
        known_values: dict[str, Any] = {
            name: None if isinstance(value, type(SET_DURING_EXECUTION)) else value
            for name, value in values.items()
        }
        return self.operator_class(task_id=self.task_id, **known_values)

    def _copy_arguments(self, operator: SparkJobOperator) -> None:
        for attribute in self._list_attributes().values():
            setattr(self, attribute, getattr(operator, attribute))

    def _list_attributes(self) -> dict[str, str]:
        """Return the arguments of the operator with the names of their attributes."""
        parameters = own_parameters(self.operator_class, BaseOperator)
        return {name: _ATTRIBUTES.get(name, name) for name in parameters}

    def _find_name_problem(self, name: Any) -> Problem | None:
        """Return why the function may not return an argument; None if it may."""
        parameters = own_parameters(self.operator_class, BaseOperator)
        if name in self._fixed_names:
            message = "is an argument of the decorator and of the returned mapping"
            return Problem(name, "duplicate", message, "leave it out of one of them")
        if name == "warehouse" and self._target_asset and self._target_asset.uri.startswith(WAREHOUSE_ASSET):
            message = "cannot be computed by a run: the asset of the target depends on it"
            return Problem(name, "parse-time", message, "set it in the decorator, or return the target too")
        if name in parameters and name not in _OF_THE_DAG:
            return None
        if name in parameters or name in own_parameters(BaseOperator, object):
            message = "cannot be computed by a run: Airflow needs it when the DAG is parsed"
            return Problem(str(name), "parse-time", message, "set it in the decorator")
        return Problem(
            str(name),
            "unknown",
            f"unknown argument {name!r}",
            did_you_mean(str(name), [item for item in parameters if item not in _OF_THE_DAG]),
        )


def _find_confidential_settings(conf: Any) -> list[Problem]:
    """Return a problem for each computed Spark setting that an XCom may not store."""
    hint = "set it in the connection of the warehouse, or in the decorator"
    message = "cannot be computed: an XCom would store the key or password while the task waits"
    names = filter(is_confidential, map(str, conf)) if isinstance(conf, Mapping) else ()
    return [Problem(f"conf.{name}", "secret", message, hint) for name in names]


@contextmanager
def _store_if_waiting(computed: Mapping[str, Any], context: Context) -> Iterator[None]:
    """Store computed arguments in an XCom, if the task waits."""
    try:
        yield
    except (TaskDeferred, TaskAwaitingInput):
        context["ti"].xcom_push(key=ARGUMENTS_KEY, value=dict(computed))
        raise


def _build_decorator(operator_class: type[SparkJobOperator], name: str) -> Callable[..., TaskDecorator]:
    """Return the decorator ``@task.<name>`` of an operator."""
    class_name = f"{operator_class.__name__.removesuffix('Operator')}DecoratedOperator"
    fields = (*DecoratedOperator.template_fields, *operator_class.template_fields)
    renderers = {
        **DecoratedOperator.template_fields_renderers,
        **operator_class.template_fields_renderers,
    }
    decorated_class = type(
        class_name,
        (DecoratedSparkJobOperator, operator_class),
        {
            "__doc__": DecoratedSparkJobOperator.__doc__,
            "__module__": __name__,
            "operator_class": operator_class,
            "custom_operator_name": f"@task.{name}",
            "template_fields": fields,
            "template_fields_renderers": renderers,
        },
    )

    def decorate_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
        # The XCom is the report: the return type of the function says nothing about it.
        kwargs.setdefault("multiple_outputs", False)
        return task_decorator_factory(python_callable, decorated_operator_class=decorated_class, **kwargs)

    decorate_task.__name__ = decorate_task.__qualname__ = f"{name}_task"
    decorate_task.__doc__ = (
        f"Return a task that runs ``{operator_class.__name__}`` with arguments that a function returns.\n\n"
        "    :param python_callable: the function; it returns a mapping of arguments of the operator.\n"
        "    :param kwargs: fixed arguments of the operator and of the task.\n"
    )
    return decorate_task


delete_insert_task = _build_decorator(DeleteInsertOperator, "delete_insert")
joiner_task = _build_decorator(JoinerOperator, "joiner")
merge_engine_task = _build_decorator(MergeEngineOperator, "merge_engine")
merge_record_task = _build_decorator(MergeRecordOperator, "merge_record")
merge_source_task = _build_decorator(MergeSourceOperator, "merge_source")
scd2_task = _build_decorator(Scd2Operator, "scd2")
upsert_task = _build_decorator(UpsertOperator, "upsert")
