"""`siltstone spark`. The work is in `spark_jobs/doctor/` and `spark_jobs/archive.py`."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from runtime.text import plural, size_text
from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.terminal.output import console, json_option, print_json
from siltstone.terminal.plain import say

if TYPE_CHECKING:
    from spark_jobs.doctor.check import Check


@click.group()
def spark() -> None:
    """Prepare Spark for large merges: check it, pack Siltstone for a cluster.

    Settings decide which merges run on Spark, and on which one (docs/spark.md).

    \b
    Examples:
      siltstone spark doctor
      siltstone spark archive siltstone-spark.tar.gz
    """


@spark.command()
@setting_options
@click.option("--no-run", is_flag=True, help="Do not start a local Spark; check only its parts.")
@click.option(
    "--cluster", is_flag=True, help="Submit a job as a merge would be: to spark.master, or to a cluster started here."
)
@click.option("--java-home", is_flag=True, help="Only print the JAVA_HOME of the Java that was found.")
@json_option
def doctor(
    config: Path | None,
    assignments: tuple[str, ...],
    no_run: bool,
    cluster: bool,
    java_home: bool,
    as_json: bool,
) -> None:
    """Check that Spark runs here and that the submitter in the settings can be reached. Exit code 1 if not.

    Starts Spark on this machine for about 15 seconds and runs two tasks. Checks the cluster that spark.submitter names
    without running anything there; with --cluster, runs four small tasks there by spark-submit, with the archive, the
    arguments and the memory of the settings. Where spark.master names no cluster, it starts one on this machine for
    that, a master and two workers on loopback, and ends it.

    \b
    Examples:
      siltstone spark doctor
      export JAVA_HOME="$(siltstone spark doctor --java-home)"
      siltstone spark doctor --config compactor.toml --json
      siltstone spark doctor --cluster \\
          --set spark.archive.url=/srv/siltstone-spark.tar.gz
      siltstone spark doctor --set spark.submitter=spark-submit \\
          --set spark.master=spark://10.0.0.5:7077
    """
    if java_home:
        from spark_jobs.environment import find_environment

        say(str(find_environment(os.environ).java.home))
        return
    from spark_jobs.doctor.examine import examine

    settings = read_settings(config, assignments)
    checks: list[Check] = []
    for check in examine(settings, os.environ, run=not no_run, cluster=cluster):
        checks.append(check)
        if not as_json:
            _print(check)
    if as_json:
        fields = ("name", "ok", "detail", "remedy")
        print_json([{field: getattr(check, field) for field in fields} for check in checks])
    else:
        bad = sum(not check.ok for check in checks)
        say(f"{len(checks) - bad} ok, {bad} not ok")
    sys.exit(0 if all(check.ok for check in checks) else 1)


def _print(check: Check) -> None:
    verdict = ("ok", "green") if check.ok else ("not ok", "red")
    line = Text.assemble((f"{verdict[0]:<7}", verdict[1]), f"{check.name:<10} {check.detail}")
    console().print(line, soft_wrap=True)
    if not check.ok:
        console().print(f"       remedy: {check.remedy}", markup=False, soft_wrap=True)


@spark.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--python",
    "python",
    metavar="PATH",
    help="Path of this version of Python on the hosts of the cluster. Default: its path here.",
)
@json_option
def archive(out: Path, python: str | None, as_json: bool) -> None:
    """Pack this Siltstone and its dependencies into a .tar.gz that Spark unpacks on each host.

    Copies the packages of the environment that runs this command and fetches nothing. PySpark and Java are left out,
    because the cluster has them, and so are development tools. The hosts need the same processor family and the same
    Python as this machine. Put the file where the hosts can read it, and name it in spark.archive.url.

    \b
    Examples:
      siltstone spark archive siltstone-spark.tar.gz
      siltstone spark archive siltstone-spark.tar.gz --python /usr/bin/python3.11
    """
    from spark_jobs.archive import DEFAULT_PYTHON, write_archive

    shown = sys.stderr.isatty() and not as_json
    with console(stderr=True).status("collecting packages") if shown else nullcontext() as status:

        def progress(distribution: str, done: int, total: int) -> None:
            if status is not None:
                status.update(f"packing {distribution} ({done} of {total})")

        written = write_archive(out, python=python or DEFAULT_PYTHON, progress=progress)
    if as_json:
        packages = {each.name: each.version for each in written.packages}
        print_json({"path": str(out), "bytes": written.size_bytes, "python": written.python, "packages": packages})
        return
    say(
        f"{out}: {size_text(written.size_bytes)}, unpacked {size_text(written.unpacked_bytes)},"
        f" {plural(len(written.packages), 'package')}, for Python {written.version} at {written.python}"
    )
