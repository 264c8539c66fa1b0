"""Return the provider metadata that Airflow's provider loader reads."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider import __version__

_PACKAGE = "airflow_merge_provider"
_INTEGRATION = "Merge"

_OPERATORS = (
    "approve_plan",
    "delete_insert",
    "joiner",
    "merge_engine",
    "merge_record",
    "merge_source",
    "scd2",
    "undo",
    "upsert",
)


def get_provider_info() -> dict[str, Any]:
    """Return the provider metadata. Imports nothing from Airflow, because Airflow calls it during startup."""
    return {
        "package-name": "airflow-merge-provider",
        "name": "Merge",
        "description": "Operators that run PySpark jobs which merge data over Delta tables.",
        "versions": [__version__],
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["apache", "software"]}],
        "operators": [_list_modules(*(f"operators.{name}" for name in _OPERATORS))],
        "task-decorators": [
            {"name": name, "class-name": f"{_PACKAGE}.decorators.{name}_task"}
            for name in _OPERATORS
            if name not in {"approve_plan", "undo"}
        ],
        "sensors": [_list_modules("sensors.dataset_populated")],
        "triggers": [
            _list_modules("triggers.dataset_changed", "triggers.dataset_populated", "triggers.landing")
        ],
        "hooks": [_list_modules("hooks.population", "hooks.spark_job", "hooks.warehouse")],
        "connection-types": [_connection_type()],
        "extra-links": [f"{_PACKAGE}.links.merge_report.MergeReportLink"],
        "asset-uris": [
            {
                "schemes": ["merge"],
                "handler": f"{_PACKAGE}.assets.sanitize_uri",
                "factory": f"{_PACKAGE}.assets.create_asset",
                "to_openlineage_converter": f"{_PACKAGE}.lineage.assets.convert_asset",
            }
        ],
        "cli": [f"{_PACKAGE}.airflow_cli.group.get_commands"],
        "config": {"merge": _config_section()},
    }


def _list_modules(*names: str) -> dict[str, Any]:
    return {
        "integration-name": _INTEGRATION,
        "python-modules": [f"{_PACKAGE}.{name}" for name in names],
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "merge_store",
        "hook-class-name": f"{_PACKAGE}.hooks.warehouse.WarehouseHook",
        "hook-name": "Merge store",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "port", "extra"],
            "relabeling": {
                "host": "Warehouse",
                "login": "Access key ID (S3)",
                "password": "Secret access key (S3), account key (Azure)",
            },
            "placeholders": {"host": "/data/warehouse, s3://bucket/warehouse, abfss://… or gs://…"},
        },
        "conn-fields": {
            "aws_conn_id": _text_field(
                "AWS connection",
                "A connection of type aws with the keys and the region, instead of those of this connection.",
            ),
            "google_cloud_conn_id": _text_field(
                "Google Cloud connection",
                "A connection of type google_cloud_platform with the key of a service account (key_path or "
                "keyfile_dict). Without it, Application Default Credentials are used.",
            ),
            "region": _text_field("Region", "The region of the bucket, such as eu-west-1."),
            "endpoint_url": _text_field(
                "Endpoint", "The address of a store that is not Amazon's, such as http://minio:9000."
            ),
            "path_style": _text_field(
                "Path style",
                "Whether the bucket is in the path of the address (true or false); by default true with an "
                "endpoint of your own.",
            ),
            "session_token": _text_field("Session token", "The token of temporary keys.", secret=True),
            "storage_options": _text_field(
                "Storage options",
                "A JSON object of further options of delta-rs, for stores other than S3, for example "
                '{"AZURE_STORAGE_ACCOUNT_NAME": "lake"}. Spark jobs use the Spark settings instead.',
                secret=True,
            ),
        },
    }


def _text_field(label: str, description: str, *, secret: bool = False) -> dict[str, Any]:
    """Return a text field of the connection form."""
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if secret:
        schema["format"] = "password"
    return {"label": label, "description": description, "schema": schema}


def _config_section() -> dict[str, Any]:
    return {
        "description": "Settings of the merge provider.",
        "options": {
            **_local_spark_options(),
            "warehouse": {
                "description": (
                    "The folder or URI that contains the datasets with bare ids. The argument warehouse of "
                    "an operator and the host of the connection merge_store_default take precedence."
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "s3://lake/warehouse",
                "default": "",
            },
            **_cluster_options(),
            "use_signalling_internally": {
                "description": (
                    "Whether a change of an input triggers the DAG of a pipe that does not set "
                    "supports_signalling. A cron expression, or an interval below "
                    "signalling_min_interval, disables it."
                ),
                "version_added": "0.1.0",
                "type": "boolean",
                "example": None,
                "default": "False",
            },
            "signalling_min_interval": {
                "description": (
                    "The shortest interval of a pipe, in seconds, for which use_signalling_internally "
                    "has an effect."
                ),
                "version_added": "0.1.0",
                "type": "float",
                "example": "3600",
                "default": "120",
            },
            **_build_shown_rows_options(),
            "show_task_tab": {
                "description": (
                    "Whether task instances have a tab with their merge report. Airflow shows the tab on "
                    "every task; on a task that runs no merge, the tab says so."
                ),
                "version_added": "0.1.0",
                "type": "boolean",
                "example": None,
                "default": "True",
            },
        },
    }


def _cluster_options() -> dict[str, Any]:
    """Return the settings of drivers that run on a cluster."""
    return {
        "exchange": {
            "description": (
                "A folder or URI that workers and clusters reach: there a driver in deploy mode cluster "
                "finds its request, and leaves its result. By default the warehouse."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "s3://lake/exchange",
            "default": "",
        },
        "cluster_application": {
            "description": (
                "Where the cluster finds the file jobs/submit/main.py of this package in deploy mode "
                "cluster. By default spark-submit uploads it, which Kubernetes needs an upload path for."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "local:///opt/merge/airflow_merge_provider/jobs/submit/main.py",
            "default": "",
        },
    }


def _build_shown_rows_options() -> dict[str, Any]:
    """Return the settings of what logs, XComs and pages show of rows."""
    return {
        "show_rows": {
            "description": (
                "Which values of rows the log, the report, the plan, approval requests and errors of a task "
                "contain: keys (of key columns; other values are masked), all or none."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "all",
            "default": "keys",
        },
        "mask_columns": {
            "description": (
                "Columns whose values are masked with each value of show_rows, separated by commas, also in "
                "nested values; address.iban masks a field of address. A name with commas or brackets stands "
                "in backticks. A key with such a column or field is masked as a whole."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "email, address.iban",
            "default": "",
        },
    }


def _local_spark_options() -> dict[str, Any]:
    """Return the settings of Spark on the machine of the worker, where no connection names another Spark."""
    return {
        "local_spark": {
            "description": (
                "Where local runs execute: shared (one Spark server per worker, which the first task starts "
                "and which ends when it is idle) or process (a Spark process for each task). Pods of the "
                "Kubernetes executor always use process."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "process",
            "default": "shared",
        },
        "local_spark_idle": {
            "description": "The time without a run after which the shared server ends: 30s, 10m or 2h.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "30m",
            "default": "10m",
        },
        "local_spark_memory": {
            "description": (
                "The heap of Spark on this machine. spark.driver.memory in the Spark settings of a task "
                "takes precedence, and gives the task another server."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "8g",
            "default": "2g",
        },
        "local_spark_cores": {
            "description": "The cores that Spark on this machine uses; by default all cores of the worker.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "4",
            "default": "",
        },
        "local_spark_warm_up": {
            "description": (
                "Whether a new shared server runs each kind of merge once on ten rows while no task uses it, "
                "so that later runs are faster."
            ),
            "version_added": "0.1.0",
            "type": "boolean",
            "example": None,
            "default": "True",
        },
    }
