"""The errors of Spark, Delta, Hadoop and stores that have a meaning of their own, and what to do about them.

Source: docs/errors.md, Errors of Spark and stores.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from airflow_merge_provider.core.errors import ConflictError, DataError, JobError, MergeError, SetupError

# Another writer has committed first, and Delta may not commit after it.
COMMIT_REFUSED = "DELTA_MAX_COMMIT_RETRIES_EXCEEDED"


class KnownError(NamedTuple):
    """An error of this package, and the errors of others for which it stands.

    ``names`` are conditions of Spark and Delta, or their beginnings, classes of Java, codes of stores and of
    gRPC. ``texts`` are patterns of messages without values, of errors that share their class with others.
    """

    kind: type[MergeError]
    message: str
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def is_in(self, named_text: str, text: str) -> bool:
        """Return whether one of the names is in a text without values, or one of the texts in another."""
        return any(name in named_text for name in self.names) or any(
            re.search(part, text) for part in self.texts
        )


# The first match counts. Names of servers are the same in both kinds of session, classes of Python are not.
KNOWN_ERRORS = (
    KnownError(
        SetupError,
        (
            "two writers of this table could overwrite each other's commits: use a store that supports "
            "conditional writes, and hadoop-aws 3.4.2 or later"
        ),
        texts=("does not support conditional writes", "cannot write on a condition"),
    ),
    KnownError(
        SetupError,
        (
            "two writers of this table could overwrite each other's commits, because its file system "
            "has no hard links: use another one, or set allow_single_writer=True if this task is the "
            "only writer"
        ),
        texts=("is on a file system without hard links",),
    ),
    KnownError(
        ConflictError,
        "another run committed to the table first: this run wrote nothing; run it again",
        names=(
            "DELTA_CONCURRENT_",
            "DELTA_METADATA_CHANGED",
            "DELTA_PROTOCOL_CHANGED",
            COMMIT_REFUSED,
            "DELTA_TABLE_ALREADY_EXISTS",
            "TABLE_OR_VIEW_ALREADY_EXISTS",
            "ConcurrentAppendException",
            "ConcurrentWriteException",
            "ConcurrentTransactionException",
            "ConcurrentDeleteReadException",
            "ConcurrentDeleteDeleteException",
            "ConcurrentModificationException",
            "MetadataChangedException",
            "ProtocolChangedException",
        ),
    ),
    KnownError(
        SetupError,
        (
            "the Spark Connect server rejected the token: set it as the password of the connection or "
            "as SPARK_CONNECT_AUTHENTICATE_TOKEN; airflow_merge_provider connect-server prints its file"
        ),
        names=("StatusCode.UNAUTHENTICATED",),
    ),
    KnownError(
        SetupError,
        "a bucket does not exist: create it, or correct the location",
        names=("NoSuchBucketException", "UnknownStoreException"),
    ),
    KnownError(
        SetupError,
        (
            "the object store accepts no credentials: set the keys in the connection of the warehouse "
            "(merge_store), or in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ),
        names=(
            "NoAuthWithAWSException",
            "CredentialInitializationException",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
        ),
        texts=("No AWS Credentials",),
    ),
    KnownError(
        SetupError,
        "Spark may not read or write a location: grant its account access, or set other credentials",
        names=("AccessControlException", "AccessDenied"),
        texts=("Permission ?denied", "403 Forbidden", "Mkdirs failed"),
    ),
    KnownError(
        JobError,
        ("a service cannot be reached: check the warehouse, the Spark connection and the network, or retry"),
        names=(
            "UnknownHostException",
            "NoRouteToHost",
            "ConnectException",
            "ConnectTimeout",
            "SocketTimeoutException",
        ),
        texts=("Connection refused", "Connection reset", "Read timed out"),
    ),
    KnownError(
        SetupError,
        ("Spark does not support this type of location: add its file system jar with spark.jars.packages"),
        names=("UnsupportedFileSystemException",),
        texts=("No FileSystem for scheme", "ClassNotFoundException.*FileSystem"),
    ),
    KnownError(
        SetupError,
        (
            "Spark cannot read Avro without an additional jar: add org.apache.spark:spark-avro_2.13 of "
            "Spark's version with spark.jars.packages"
        ),
        names=("AVRO_NOT_LOADED",),
        texts=("data ?source:? avro", "Avro is built-in but external"),
    ),
    KnownError(
        SetupError,
        (
            "Spark has no Delta jars: add them with spark.jars, or use a server that "
            "airflow_merge_provider connect-server started, which has them"
        ),
        names=(
            "DELTA_CONFIGURE_SPARK_SESSION",
            "ClassNotFoundException: io.delta",
            "ClassNotFoundException: org.apache.spark.sql.delta",
        ),
        texts=("data ?source:? delta",),
    ),
    KnownError(
        SetupError,
        (
            "Spark has no catalog of this name: set spark.sql.catalog.<name> in the Spark settings, or "
            "reference the dataset by its location"
        ),
        names=("CATALOG_NOT_FOUND", "CatalogNotFoundException", "REQUIRES_SINGLE_PART_NAMESPACE"),
    ),
    KnownError(
        DataError,
        (
            "the data files of the earlier version are gone, because VACUUM has removed them: a "
            "full_refresh computes the target again; raise delta.deletedFileRetentionDuration for later "
            "runs"
        ),
        texts=(r": Not all files from version \d+ are available",),
    ),
    KnownError(
        DataError,
        (
            "a CSV file has text after a quoted value, or a value or a line that is longer than "
            "maxCharsPerColumn and maxColumns permit: double quotes in values, or raise these options"
        ),
        names=("TextParsingException",),
    ),
    KnownError(
        DataError,
        "Spark does not know the encoding: write the files in UTF-8",
        names=("VALUE.CHARSET",),
    ),
    KnownError(
        JobError,
        "Spark ran out of memory: raise spark.driver.memory",
        names=("OutOfMemoryError",),
    ),
    KnownError(
        DataError,
        "a dataset does not exist: check its name and the warehouse",
        names=(
            "PATH_NOT_FOUND",
            "DELTA_PATH_DOES_NOT_EXIST",
            "DELTA_MISSING_DELTA_TABLE",
            "TABLE_OR_VIEW_NOT_FOUND",
        ),
    ),
)
