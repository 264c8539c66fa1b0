"""The key of a Google service account, and its forms for Spark, delta-rs and fsspec."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

AUTH_TYPE_SETTING = "spark.hadoop.fs.gs.auth.type"
KEY_FILE_SETTING = "spark.hadoop.fs.gs.auth.service.account.json.keyfile"
# Hadoop's client reads a key from a file only. Whoever starts Spark writes the content of this setting into a
# private file, and replaces it with KEY_FILE_SETTING.
KEY_SETTING = "spark.airflow.merge.gcs.key"
_AUTH_TYPE = "SERVICE_ACCOUNT_JSON_KEYFILE"
# The names of both forms in options and variables of delta-rs, without GOOGLE_.
_KEY_FILE_NAMES = ("SERVICE_ACCOUNT", "SERVICE_ACCOUNT_PATH")
_GCS_KEY_NAMES = ("SERVICE_ACCOUNT_KEY",)


@dataclass(frozen=True, slots=True)
class GcsSettings:
    """The key of a service account; without a key, clients use Application Default Credentials.

    :param key_file: the path of a key file.
    :param key: the content of a key file, as JSON; it is used if there is no path.
    """

    key_file: str | None = None
    key: str | None = field(default=None, repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Return the settings in options of delta-rs, or in environment variables.

        >>> GcsSettings.from_options({"google_service_account": "/keys/lake.json"})
        GcsSettings(key_file='/keys/lake.json')
        """
        values = {name.upper().removeprefix("GOOGLE_"): value for name, value in options.items() if value}
        key_file, key = (
            next((values[name] for name in names if name in values), None)
            for names in (_KEY_FILE_NAMES, _GCS_KEY_NAMES)
        )
        return cls(key_file, key)

    @classmethod
    def from_environment(cls) -> Self:
        """Return the settings in the variables of delta-rs, which the other clients do not read.

        Every client reads ``GOOGLE_APPLICATION_CREDENTIALS`` itself.
        """
        return cls.from_options(
            {name: value for name, value in os.environ.items() if name.startswith("GOOGLE_")}
        )

    @classmethod
    def from_spark(cls, get_setting: Callable[[str], str | None]) -> Self:
        """Return the settings of a Spark session; ``get_setting`` returns a Spark setting or None."""
        return cls(get_setting(KEY_FILE_SETTING) or None)

    def as_spark(self) -> dict[str, str]:
        """Return the settings of Spark."""
        if self.key_file:
            return {AUTH_TYPE_SETTING: _AUTH_TYPE, KEY_FILE_SETTING: self.key_file}
        return {AUTH_TYPE_SETTING: _AUTH_TYPE, KEY_SETTING: self.key} if self.key else {}

    def as_delta_rs(self) -> dict[str, str]:
        """Return the storage options of delta-rs."""
        if self.key_file:
            return {"GOOGLE_SERVICE_ACCOUNT": self.key_file}
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": self.key} if self.key else {}

    def as_fsspec(self) -> dict[str, Any]:
        """Return the arguments of gcsfs."""
        if self.key_file:
            return {"token": self.key_file}
        return {"token": json.loads(self.key)} if self.key else {}
