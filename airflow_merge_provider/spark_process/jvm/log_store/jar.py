"""Find the jar of the log stores, and build it from its sources.

The wheel contains the jar, so that users need no compiler. In a checkout, ``make install`` builds it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from airflow_merge_provider.core.child_process import build_child_environment
from airflow_merge_provider.core.errors import MergeError, SetupError
from airflow_merge_provider.spark_process.jvm.jars import (
    cache_folder,
    delta_jars,
    download_packages,
    find_java,
    spark_home,
)

SOURCE_FOLDER = Path(__file__).parent
PACKAGED_JAR = Path(__file__).with_name("log_store.jar")
# The compiler of Eclipse needs only a Java runtime, and writes the same bytes on every machine.
_COMPILER = "ecj"
_COMPILER_VERSION = "3.44.0"
_JAVA_VERSION = "17"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_JAR_DIGEST_CHARACTERS = 12


def find_log_store_jar() -> Path:
    """Return the jar of the log stores; without a packaged one, it is built once per machine and sources.

    :raises SetupError: when it has to be built, and what that needs is missing.
    """
    jar = locate_log_store_jar()
    if not jar.is_file():
        build_jar(jar)
    return jar


def locate_log_store_jar() -> Path:
    """Return the path of the jar of the log stores, whether it exists or not."""
    if PACKAGED_JAR.is_file():
        return PACKAGED_JAR
    content = b"".join(source.read_bytes() for source in _list_sources())
    digest = hashlib.sha256(content).hexdigest()[:_JAR_DIGEST_CHARACTERS]
    return cache_folder() / "jars" / f"log-store-{digest}.jar"


def build_jar(jar: Path) -> None:
    """Compile the sources, and write a jar that depends on nothing but these and the compiler.

    :raises SetupError: when Java, Spark or the compiler is missing, or a source cannot be compiled.
    """
    library = _find_compiler()
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.parent) as folder:
        classes = Path(folder, "classes")
        class_path = [*delta_jars(), *map(str, spark_home().glob("jars/hadoop-client-api-*.jar"))]
        command = [
            *(str(find_java()), "-jar", str(library), "-nowarn", "-proc:none", "-encoding", "UTF-8"),
            *("-source", _JAVA_VERSION, "-target", _JAVA_VERSION, "-classpath", ":".join(class_path)),
            *("-d", str(classes), *map(str, _list_sources())),
        ]
        process = subprocess.run(  # noqa: S603 - our own command, no shell
            command,
            env=build_child_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if process.returncode:
            raise SetupError(f"The log stores cannot be compiled: {process.stdout.strip()}")
        part = Path(folder, jar.name)
        _pack_classes(classes, part)
        part.replace(jar)


def _list_sources() -> list[Path]:
    return sorted(SOURCE_FOLDER.glob("*.java"))


def _find_compiler() -> Path:
    library = cache_folder() / "jars" / f"{_COMPILER}-{_COMPILER_VERSION}.jar"
    if not library.is_file():
        group = "org.eclipse.jdt"
        packages = [f"{group}:{_COMPILER}:{_COMPILER_VERSION}"]
        remedy = f"copy {library.name} to {library.parent}"
        with download_packages("The Java compiler", packages, "none:none", library.parent, remedy) as jars:
            (jars / f"{group}_{library.name}").replace(library)
    return library


def _pack_classes(classes: Path, jar: Path) -> None:
    """Write class files into a jar, in the order of their names and with one fixed time."""
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(classes.rglob("*.class")):
            entry = zipfile.ZipInfo(path.relative_to(classes).as_posix(), _EARLIEST)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def main() -> int:
    """Build the jar into the package, for the wheel, and print its path."""
    try:
        build_jar(PACKAGED_JAR)
    except MergeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{PACKAGED_JAR}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
