"""The address and the credentials of an S3 store, and their forms for Spark, delta-rs and fsspec."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

_HADOOP = "spark.hadoop.fs.s3a."
_DEFAULT_REGION = "us-east-1"

# The names of each setting: in options and variables (without AWS_), and in Hadoop (without fs.s3a.).
_OPTION_NAMES = {
    "access_key": ("ACCESS_KEY_ID",),
    "secret_key": ("SECRET_ACCESS_KEY",),
    "session_token": ("SESSION_TOKEN", "TOKEN"),
    "region": ("REGION", "REGION_NAME", "DEFAULT_REGION"),
    "endpoint": ("ENDPOINT_URL_S3", "ENDPOINT_URL", "ENDPOINT"),
}
_HADOOP_NAMES = {
    "access_key": "access.key",
    "secret_key": "secret.key",
    "session_token": "session.token",
    "region": "endpoint.region",
    "endpoint": "endpoint",
}
_KEY_FIELDS = ("access_key", "secret_key", "session_token")


@dataclass(frozen=True, slots=True)
class S3Settings:
    """The address and the credentials of an S3 store; a setting that is None has the client's default.

    ``path_style`` addresses buckets in the path instead of the host name; None is true for an endpoint of
    one's own, which rarely has a host name for each bucket.
    """

    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = None
    path_style: bool | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Return the settings in options of delta-rs, or in environment variables.

        >>> S3Settings.from_options({"AWS_REGION": "eu-west-1", "aws_endpoint_url": "http://minio:9000"})
        S3Settings(access_key=None, region='eu-west-1', endpoint='http://minio:9000', path_style=None)
        """
        values = {name.upper().removeprefix("AWS_"): value for name, value in options.items() if value}
        found_values = {
            setting: next((values[name] for name in names if name in values), None)
            for setting, names in _OPTION_NAMES.items()
        }
        style = values.get("VIRTUAL_HOSTED_STYLE_REQUEST")
        return cls(**found_values, path_style=None if style is None else style.lower() == "false")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Return the settings in the variables of AWS, without keys: every client reads those itself."""
        variables = os.environ if environment is None else environment
        options = {name: value for name, value in variables.items() if name.startswith("AWS_")}
        return replace(cls.from_options(options), **dict.fromkeys(_KEY_FIELDS))

    @classmethod
    def from_spark(cls, get_setting: Callable[[str], str | None]) -> Self:
        """Return the settings of a Spark session; ``get_setting`` returns a Spark setting or None."""
        values = {setting: get_setting(f"{_HADOOP}{name}") or None for setting, name in _HADOOP_NAMES.items()}
        style = get_setting(f"{_HADOOP}path.style.access")
        return cls(**values, path_style=None if style is None else style == "true")

    def fill_missing(self, other: S3Settings) -> S3Settings:
        """Return these settings, with those of ``other`` where there are none.

        The three parts of a key belong together: they are never mixed.
        """
        keys = {} if self.access_key else {name: getattr(other, name) for name in _KEY_FIELDS}
        return replace(
            self,
            **keys,
            **{
                setting.name: getattr(other, setting.name)
                for setting in fields(self)
                if setting.name not in _KEY_FIELDS and getattr(self, setting.name) is None
            },
        )

    @property
    def uses_path_style(self) -> bool:
        """Whether buckets are addressed in the path."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    def as_spark(self) -> dict[str, str]:
        """Return the settings of Spark."""
        values = {name: getattr(self, setting) for setting, name in _HADOOP_NAMES.items()}
        if self.endpoint:
            values["endpoint.region"] = self.region or _DEFAULT_REGION
        if self.uses_path_style:
            values["path.style.access"] = "true"
        return {f"{_HADOOP}{name}": value for name, value in values.items() if value}

    def as_delta_rs(self) -> dict[str, str]:
        """Return the storage options of delta-rs."""
        options = {f"AWS_{names[0]}": getattr(self, setting) for setting, names in _OPTION_NAMES.items()}
        options["AWS_ENDPOINT_URL"] = options.pop("AWS_ENDPOINT_URL_S3")
        if self.endpoint:
            options["AWS_REGION"] = self.region or _DEFAULT_REGION
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(not self.uses_path_style).lower()
            if self.endpoint.startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
        return {name: value for name, value in options.items() if value}

    def as_fsspec(self) -> dict[str, Any]:
        """Return the arguments of s3fs."""
        keys = {"key": self.access_key, "secret": self.secret_key, "token": self.session_token}
        arguments: dict[str, Any] = {
            name: value for name, value in {**keys, "endpoint_url": self.endpoint}.items() if value
        }
        if self.region:
            arguments["client_kwargs"] = {"region_name": self.region}
        if self.uses_path_style:
            arguments["config_kwargs"] = {"s3": {"addressing_style": "path"}}
        return arguments
