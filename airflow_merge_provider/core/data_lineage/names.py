"""The name of a dataset in all lineage events, by the naming conventions of OpenLineage.

Other tools give the same names to the same datasets: the Spark integration of OpenLineage to the locations
that Spark reads, and the providers of Airflow to their assets.
Source: https://openlineage.io/docs/spec/naming
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_merge_provider.core.dataset import split_location

# Spark alone knows the metastore behind a catalog, so its tables have a namespace of this package.
CATALOG = "merge://catalog"
_TABLE = "table:"
_LOCAL = "file"
# The stores in which the name of a dataset begins without a slash.
_KEY_STORES = ("s3", "gs", "abfss", "wasbs")


class DatasetName(NamedTuple):
    """The namespace and the name of a dataset."""

    namespace: str
    name: str


def name_dataset(uri: str) -> DatasetName:
    """Return the name of a dataset, given its URI as reports show it.

    Symbolic links are not resolved: other tools do not resolve them either, and the file may be on another
    machine.

    >>> name_dataset("s3a://lake/crm/customers/"), name_dataset("file:///lake/customers")
    (DatasetName(namespace='s3://lake', name='crm/customers'), DatasetName(namespace='file', name='/lake/customers'))
    """  # noqa: E501 - the output of the example
    if uri.startswith(_TABLE):
        # Spark resolves table names case-insensitively.
        return DatasetName(CATALOG, uri.removeprefix(_TABLE).lower())
    location = split_location(uri)
    if location is None:
        return DatasetName(_LOCAL, uri)
    store, authority, path = location
    namespace = f"{store}://{authority}" if authority else store
    return DatasetName(namespace, path.strip("/") or "/" if store in _KEY_STORES else path)
