"""The key of an Azure storage account, and its forms for Spark, delta-rs and fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

_ACCOUNT_KEY_SETTING = "spark.hadoop.fs.azure.account.key."
_ENDPOINT = "spark.hadoop.fs.azure.abfs.endpoint"
_DOMAIN = "dfs.core.windows.net"
_ACCOUNT = re.compile(r"abfss?://[^@/]+@([^/]+)")
# The names of the key in options and variables, without AZURE_STORAGE_ and AZURE_.
_AZURE_KEY_NAMES = ("ACCOUNT_KEY", "ACCESS_KEY", "MASTER_KEY")
# An emulator has no TLS, no hierarchical namespace, and the account in the path of the address.
_OF_AN_EMULATOR = {
    "spark.hadoop.fs.azure.always.use.https": "false",
    "spark.hadoop.fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
    "spark.hadoop.fs.azure.fns.account.service.type": "BLOB",
    "spark.hadoop.fs.azure.account.hns.enabled": "false",
}


def find_account(location: str | None) -> str | None:
    """Return the host of the storage account of a location; None if it is not on Azure.

    >>> find_account("abfss://lake@shop.dfs.core.windows.net/customers"), find_account("s3://lake/customers")
    ('shop.dfs.core.windows.net', None)
    """
    match = _ACCOUNT.match(location or "")
    return match[1] if match else None


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """The key of a storage account; without a key, each client finds its own credentials.

    :param account: the host of the account, as locations have it.
    :param endpoint: the address of an emulator, such as ``http://127.0.0.1:10000``.
    """

    account: str | None = None
    account_key: str | None = field(default=None, repr=False)
    endpoint: str | None = None

    @classmethod
    def from_options(
        cls, account: str | None, options: Mapping[str, str], endpoint: str | None = None
    ) -> Self:
        """Return the settings in options of delta-rs, or in environment variables.

        >>> AzureSettings.from_options(
        ...     "a.dfs.core.windows.net", {"AZURE_STORAGE_ACCOUNT_KEY": "k"}
        ... ).account_key
        'k'
        """
        values = {
            name.upper().removeprefix("AZURE_").removeprefix("STORAGE_"): value
            for name, value in options.items()
        }
        key = next((values[name] for name in _AZURE_KEY_NAMES if values.get(name)), None)
        return cls(account, key, endpoint)

    @classmethod
    def from_environment(cls) -> Self:
        """Return the settings in the variables of Azure: Hadoop's client does not read them itself."""
        variables = {name: value for name, value in os.environ.items() if name.startswith("AZURE_")}
        name = variables.get("AZURE_STORAGE_ACCOUNT_NAME")
        return cls.from_options(f"{name}.{_DOMAIN}" if name else None, variables)

    @classmethod
    def from_spark(cls, get_setting: Callable[[str], str | None], account: str) -> Self:
        """Return the settings of a Spark session; ``get_setting`` returns a Spark setting or None."""
        endpoint = get_setting(_ENDPOINT)
        return cls(
            account,
            get_setting(f"{_ACCOUNT_KEY_SETTING}{account}"),
            f"http://{endpoint}" if endpoint else None,
        )

    @property
    def _name(self) -> str:
        return (self.account or "").partition(".")[0]

    def as_spark(self) -> dict[str, str]:
        """Return the settings of Spark."""
        if not self.account or not self.account_key:
            return {}
        settings = {f"{_ACCOUNT_KEY_SETTING}{self.account}": self.account_key}
        if self.endpoint:
            settings[f"{_ACCOUNT_KEY_SETTING}{self.account.replace('.dfs.', '.blob.')}"] = self.account_key
            settings |= {_ENDPOINT: self.endpoint.partition("://")[2].rstrip("/"), **_OF_AN_EMULATOR}
        return settings

    def as_delta_rs(self) -> dict[str, str]:
        """Return the storage options of delta-rs."""
        options = {"AZURE_STORAGE_ACCOUNT_KEY": self.account_key} if self.account_key else {}
        if self.endpoint:
            options["AZURE_STORAGE_ENDPOINT"] = f"{self.endpoint.rstrip('/')}/{self._name}"
            options["AZURE_ALLOW_HTTP"] = "true"
        return options

    def as_fsspec(self) -> dict[str, Any]:
        """Return the arguments of adlfs, which reads the account from the location."""
        if not self.account_key:
            return {}
        if self.endpoint is None:
            return {"account_key": self.account_key}
        parts = {
            "DefaultEndpointsProtocol": self.endpoint.partition("://")[0],
            "AccountName": self._name,
            "AccountKey": self.account_key,
            "BlobEndpoint": f"{self.endpoint.rstrip('/')}/{self._name}",
        }
        return {"connection_string": ";".join(f"{name}={value}" for name, value in parts.items())}
