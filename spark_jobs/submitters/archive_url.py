"""Whether a cluster can read the archive that `spark.archive.url` names: decided before anything is submitted.

Spark fetches the archive on the driver and on each executor before it adds the jars of `--packages`, and `spark-submit`
looks at it earlier still. So a scheme that needs a file system of its own (`s3a://`) works only where its jars lie on
the class path of Spark itself, on every host. A file of the driver's host needs nothing: the driver hands it out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_jobs.archive import SUFFIXES
from spark_jobs.submitters.arguments import CLUSTER, SubmitArguments

FETCHED_BY_SPARK = frozenset({"http", "https", "ftp"})
HADOOP_BRINGS = frozenset({"hdfs", "webhdfs", "swebhdfs", "viewfs"})
JAR_OF: Mapping[str, str] = {
    "s3a": "hadoop-aws",
    "abfs": "hadoop-azure",
    "abfss": "hadoop-azure",
    "gs": "gcs-connector",
}
S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
EASIEST = "a path on this host, which the driver hands to the executors, or http(s)://"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why this archive cannot be used, and what to write instead."""

    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class SparkJars:
    """The jars of the Spark that submits."""

    names: frozenset[str]
    """File names. Empty: they were not found, and nothing is known."""

    @property
    def hadoop(self) -> str:
        """Hadoop's version, as in "3.5.0"; "" if it is not known."""
        found = [re.fullmatch(r"hadoop-client-api-(.+)\.jar", each) for each in self.names]
        return next((each[1] for each in found if each), "")

    def has(self, name: str) -> bool:
        return any(each.startswith(f"{name}-") for each in self.names)


def jars_of(home: Path | None) -> SparkJars:
    """The jars below a Spark's home."""
    return SparkJars(frozenset(path.name for path in (home / "jars").glob("*.jar")) if home else frozenset())


def refused(url: str, arguments: SubmitArguments, jars: SparkJars) -> Refused | None:
    """Why the cluster cannot read this archive, or None. Looks at local files, and asks nobody."""
    if not url:
        return None
    place = urlsplit(url)
    if place.fragment:
        return Refused(f"spark.archive.url has a fragment: {url}", "leave # and what follows it out")
    if not place.path.endswith(SUFFIXES):
        remedy = f"name what `siltstone spark archive` wrote: a file that ends in {' or '.join(SUFFIXES)}"
        return Refused(f"spark.archive.url is no archive that Spark unpacks: {url}", remedy)
    scheme = place.scheme.lower()
    if scheme in ("", "file"):
        return _file(url, arguments)
    if scheme == "local":
        return Refused(f"Spark does not unpack an archive of the scheme local: {url}", f"name it by {EASIEST}")
    if scheme in FETCHED_BY_SPARK or scheme in HADOOP_BRINGS or arguments.master == "yarn":
        return None  # a YARN cluster brings its file systems, and EMR's has s3://
    if _is_on_class_path(scheme, arguments, jars):
        return None
    return _without_jar(url, scheme, arguments, jars)


def local_path(url: str) -> Path | None:
    """The file that the URL names on this host; None for a URL of elsewhere."""
    place = urlsplit(url)
    if place.scheme.lower() not in ("", "file"):
        return None
    return Path(unquote(place.path) if place.scheme else url)


def _file(url: str, arguments: SubmitArguments) -> Refused | None:
    path = local_path(url)
    assert path is not None
    if not path.is_absolute():
        return Refused(f"spark.archive.url is not an absolute path: {url}", "write the whole path")
    if arguments.master.startswith("k8s://") and arguments.deploy_mode == CLUSTER:
        return Refused(
            f"spark.archive.url is a path, and the driver's pod does not have it: {url}",
            "name it by http(s)://, or install Siltstone in the image",
        )
    if not path.is_file():
        return Refused(f"spark.archive.url: there is no file {path}", "write it there: siltstone spark archive PATH")
    return None


def _is_on_class_path(scheme: str, arguments: SubmitArguments, jars: SparkJars) -> bool:
    """Whether a file system for the scheme can be there when Spark fetches the archive."""
    named = arguments.confs.get(f"spark.hadoop.fs.{scheme}.impl", S3A if scheme == "s3a" else "")
    if scheme == "s3" and not named:
        return False
    driver = arguments.value("--driver-class-path", "spark.driver.extraClassPath")
    if driver and arguments.confs.get("spark.executor.extraClassPath"):
        return True
    jar = "hadoop-aws" if named == S3A else JAR_OF.get(scheme, "")
    return not jars.names or bool(jar and jars.has(jar))


def _without_jar(url: str, scheme: str, arguments: SubmitArguments, jars: SparkJars) -> Refused:
    version = f":{jars.hadoop}" if jars.hadoop else " of Hadoop's version"
    if scheme in ("s3", "s3a"):
        early = ""
        packages = arguments.value("--packages", "spark.jars.packages")
        if "hadoop-aws" in packages:
            early = "; --packages comes too late for it: Spark fetches the archive first"
        other = "s3:// is EMR's own; elsewhere write s3a://" if scheme == "s3" else "s3a:// needs hadoop-aws"
        return Refused(
            f"Spark has no file system here for {scheme}://, by which spark.archive.url names the archive{early}",
            f"name it by {EASIEST}; {other}, with the jars of org.apache.hadoop:hadoop-aws{version} on the class path"
            " of Spark on every host (docs/spark.md, Archive in S3)",
        )
    jar = JAR_OF.get(scheme)
    needs = f"the jars of {jar} on the class path of Spark on every host" if jar else "the jars for that scheme"
    return Refused(
        f"Spark has no file system here for {scheme}://, by which spark.archive.url names the archive",
        f"name it by {EASIEST}; {scheme}:// needs {needs}",
    )
