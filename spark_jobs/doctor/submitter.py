"""Whether the submitter of the settings, its cluster and its archive can be used, judged without running a job."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

from runtime.errors import BadInputError, SiltstoneError
from runtime.settings.table import Settings
from spark_jobs.archive import About, about, about_here
from spark_jobs.doctor.check import Check, failed, passed
from spark_jobs.environment import SparkMissingError, find_spark
from spark_jobs.submitters.archive_url import jars_of, local_path, refused
from spark_jobs.submitters.arguments import SubmitArguments, read_defaults, submit_arguments
from spark_jobs.submitters.spark_submit import home_of

MASTER_PORTS = {"spark": 7077, "https": 443, "http": 80}
CONNECT_TIMEOUT_S = 5
TRY_IT = "siltstone spark doctor --cluster tries it"


def look_at_submitter(settings: Settings, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield "submitter", and "archive" if one is named that `spark-submit` would use."""
    match settings.spark_submitter:
        case "none":
            yield passed(
                "submitter", "none: all merges run in the compactor; spark.submitter=local would use this Spark"
            )
        case "local":
            yield passed("submitter", f"local: {settings.spark_master} on this machine")
        case "spark-submit":
            home = spark_home(settings, environ)
            arguments = submit_arguments(settings, read_defaults(home, environ))
            yield _spark_submit(settings, arguments, environ)
        case _:
            yield asyncio.run(_emr(settings))
            return
    if settings.spark_archive_url:
        yield look_at_archive(settings, environ)


def spark_home(settings: Settings, environ: Mapping[str, str]) -> Path | None:
    """The Spark whose `spark-submit` is used; None if it is not known."""
    if settings.spark_submit_path:
        return home_of(Path(settings.spark_submit_path), environ)
    with suppress(SparkMissingError):
        return find_spark().home
    return None


# ---- the cluster ---------------------------------------------------------------------------------------------------


def _spark_submit(settings: Settings, arguments: SubmitArguments, environ: Mapping[str, str]) -> Check:
    path = settings.spark_submit_path
    if path and not os.access(path, os.X_OK):
        return failed("submitter", f"spark.submit.path: {path} cannot be run", "name the bin/spark-submit of a Spark")
    master = arguments.master
    if not master:
        return passed("submitter", "spark-submit: neither the settings nor spark-defaults.conf name a master")
    told = f"spark-submit to {master}"
    if master == "yarn":
        places = [Path(environ[each]) for each in ("HADOOP_CONF_DIR", "YARN_CONF_DIR") if environ.get(each)]
        if not any((place / "yarn-site.xml").is_file() for place in places):
            return failed(
                "submitter", f"{told}: no yarn-site.xml", "set HADOOP_CONF_DIR to the cluster's configuration"
            )
        return passed("submitter", f"{told}: configured; the cluster was not asked")
    addresses = addresses_of(master)
    if not addresses:
        return passed("submitter", told)
    if not any(_answers(*address) for address in addresses):
        shown = ", ".join(f"{host}:{port}" for host, port in addresses)
        return failed("submitter", f"{told}: nothing answers at {shown}", "start it, or correct spark.master")
    driver = arguments.confs.get("spark.driver.host") or environ.get("SPARK_LOCAL_IP", "")
    if is_loopback(driver) and not any(is_loopback(host) for host, _ in addresses):
        return failed(
            "submitter",
            f"{told}: executors are told to reach the driver at {driver}, which is their own host",
            "set SPARK_LOCAL_IP or spark.driver.host to an address of this host that executors reach",
        )
    return passed("submitter", f"{told}: it answers")


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this host's own, for itself alone. False for "" and for an unknown name."""
    try:
        return bool(host) and ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False


def addresses_of(master: str) -> Sequence[tuple[str, int]]:
    """Hosts and ports of a master: `spark://A:7077,B:7077`, `k8s://https://C`. Empty for one without an address."""
    if master.startswith("spark://"):
        urls = [f"spark://{each}" for each in master.removeprefix("spark://").split(",")]
    elif master.startswith("k8s://"):
        bare = master.removeprefix("k8s://")
        urls = [bare if "://" in bare else f"https://{bare}"]
    else:
        return ()
    split = [urlsplit(url) for url in urls]
    return [(each.hostname, each.port or MASTER_PORTS[each.scheme]) for each in split if each.hostname]


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


# ---- the archive ---------------------------------------------------------------------------------------------------


def look_at_archive(settings: Settings, environ: Mapping[str, str]) -> Check:
    """Whether the cluster can read the archive, and whether it was packed for it: read as far as this host can."""
    url = settings.spark_archive_url
    home = spark_home(settings, environ)
    problem = refused(url, submit_arguments(settings, read_defaults(home, environ)), jars_of(home))
    if problem is not None:
        return failed("archive", problem.message, problem.remedy)
    try:
        opened = _opened(url)
        if opened is None:
            return passed("archive", f"{url}: not looked into; {TRY_IT}")
        with opened as file:
            return judge_archive(url, about(file), about_here())
    except BadInputError as error:
        return failed("archive", f"{url}: {error.message}", error.remedy)
    except urllib.error.HTTPError as error:
        return failed("archive", f"{url}: {error.code} {error.reason}", "put the archive there, or correct the setting")
    except (OSError, ValueError) as error:
        return failed("archive", f"{url}: {error}", "let it be readable from here: the driver fetches it, too")


def _opened(url: str) -> IO[bytes] | None:
    """The archive's bytes; None if only Spark can read them. Raises OSError, ValueError."""
    path = local_path(url)
    if path is not None:
        return path.open("rb")
    if urlsplit(url).scheme.lower() not in ("http", "https"):
        return None
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as Spark, which heeds no *_proxy
    return cast("IO[bytes]", direct.open(url, timeout=CONNECT_TIMEOUT_S))


def judge_archive(url: str, packed: About, here: About) -> Check:
    """Whether what is packed fits this process, which will be the driver."""
    if packed.python_line != here.python_line:
        return failed(
            "archive",
            f"{url} is for Python {packed.python_line}, and the driver's Python here is {here.python_line}",
            f"pack it with Python {here.python_line}, or run the compactor with {packed.python_line}",
        )
    if packed.processor != here.processor:
        return failed(
            "archive",
            f"{url} is for {packed.processor}, and this host is {here.processor}",
            "pack it on a host of the cluster's kind, and let all be of one kind",
        )
    if packed.release != here.release:
        return failed(
            "archive",
            f"{url} holds Siltstone {packed.release}, and the compactor here is {here.release}",
            "pack it again: siltstone spark archive",
        )
    return passed(
        "archive", f"{url}: Siltstone {packed.release} for Python {packed.python_line} at {packed.python_path}"
    )


# ---- EMR -----------------------------------------------------------------------------------------------------------


async def _emr(settings: Settings) -> Check:
    application = settings.spark_emr_application_id
    try:
        from spark_jobs.submitters.emr_serverless import EmrServerlessSubmitter  # loads the AWS client

        answer = await EmrServerlessSubmitter(settings).about()
    except SiltstoneError as error:
        return failed(
            "submitter", f"emr-serverless: {error.message}", error.remedy or "check AWS credentials and region"
        )
    release, state = str(answer.get("releaseLabel")), str(answer.get("state"))
    if state == "TERMINATED":
        return failed("submitter", f"emr-serverless: application {application} is terminated", "make another")
    return passed("submitter", f"emr-serverless: application {application} ({release}) is {state}")
