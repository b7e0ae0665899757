"""Every example of README and the guides is run by a test, or listed here with the reason why none runs it.

`tests/integration/siltstone/test_runbook.py` checks of all of them that the commands and their options exist.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.integration.siltstone.test_docs_examples import PAGES

ROOT = Path(__file__).resolve().parents[3]
ANY_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
"""Those in lists are indented."""
RUN_AS_THEY_STAND = {*PAGES, "docs/command-line.md", "docs/security.md"}
"""Pages of which a test runs every block of `sh` and `python`, in order."""
QUERIES_OF = "docs/operations/runbook.md"
"""`tests/integration/siltstone/test_runbook.py` runs every query of it."""
UPGRADES = "tests/integration/metadata/test_migrate.py"
MONITORING = "tests/contract/test_observation.py"
SHELL = "tests/integration/siltstone/test_shell_examples.py"
RUN_BY_OTHERS = {
    ("docs/spark.md", "from pyspark.sql import SparkSession"): "tests/integration/spark/source/test_source.py",
    ("docs/spark.md", 'spark.conf.set("spark.sql.python.filterPushdown'): (
        "tests/integration/spark/source/test_pushdown_on_spark.py"
    ),
    ("docs/spark.md", "accounts = {}"): "tests/integration/spark/source/test_changes.py",
    ("docs/spark.md", "MERGE INTO accounts"): "tests/integration/spark/source/test_changes.py",
    ("docs/spark.md", "numbers = spark.range"): "tests/integration/spark/source/test_sink.py",
    ("docs/spark.md", "from pyspark import pipelines as dp"): "tests/integration/spark/source/test_pipelines.py",
    ("docs/spark.md", "from pyspark_siltstone import end_offsets, read_latest"): (
        "tests/integration/spark/latest/test_latest.py"
    ),
    ("docs/spark.md", 'export JAVA_HOME="$(siltstone spark doctor --java-home)"'): (
        "tests/integration/spark/test_spark_cli.py"
    ),
    ("docs/operations/sizing.md", "siltstone cost --mib-s 100"): "tests/unit/siltstone/ops/test_cost.py",
    ("docs/operations/sizing.md", "$ siltstone cost --mib-s 100"): "tests/unit/siltstone/ops/test_cost.py",
    ("docs/command-line.md", "eval "): SHELL,
    ("docs/security.md", "siltstone dev --secure"): "tests/integration/siltstone/test_security_page.py",
    ("docs/erasure.md", "siltstone topics create orders"): SHELL,
    ("docs/erasure.md", "openssl pkey"): SHELL,
    ("docs/look-inside.md", "siltstone compactor simulate"): SHELL,
    ("docs/look-inside.md", "SILTSTONE_METADATA_URL="): SHELL,
    ("docs/look-inside.md", "siltstone dev --agents 2"): SHELL,
    ("docs/look-inside.md", "siltstone compactor --data"): SHELL,
    ("docs/look-inside.md", "siltstone compact TOPIC"): SHELL,
    ("docs/kafka-clients.md", "kcat -L"): SHELL,
    ("docs/kafka-clients.md", "from confluent_kafka import Producer"): SHELL,
    ("docs/kafka-clients.md", "from kafka import KafkaProducer"): SHELL,
    ("docs/kafka-clients.md", "import asyncio"): SHELL,
    ("docs/kafka-clients.md", "from kafka import KafkaConsumer"): SHELL,
    ("docs/operations/logs-and-traces.md", "# 1. the request"): SHELL,
    ("docs/operations/logs-and-traces.md", "# 2. the life of that file"): SHELL,
    ("docs/operations/logs-and-traces.md", "# errors by kind"): SHELL,
    ("docs/operations/rebuild.md", "mkdir drill"): SHELL,
    ("docs/operations/rebuild.md", "URL="): SHELL,
    ("docs/operations/rebuild.md", "siltstone dev --data drill"): SHELL,
    ("docs/operations/upgrades.md", "$ siltstone migrate --dry-run"): UPGRADES,
    ("docs/operations/postgres.md", "siltstone migrate"): "tests/integration/metadata/test_roles.py",
    ("docs/operations/postgres.md", "ALTER SYSTEM"): "tests/integration/metadata/test_load_probe.py",
    ("docs/operations/monitoring.md", "GRANT pg_read_all_stats"): MONITORING,
}
"""(page, how a line of the block begins) -> the test file that reads and runs it."""

INSTALLS = "installs packages, which a test run must not"
SERVERS = "needs other Postgres servers or an object store with names of the reader's own"
CATALOGS = "asks a catalog of the reader's; tests/integration/spark/catalogs asks some of its own"
NOT_RUN = {
    ("README.md", "make demo"): "takes minutes and installs; tests/integration/siltstone/test_demo.py runs the demo",
    ("README.md", "make install"): f"{INSTALLS}; then it is `siltstone dev`, which test_dev.py runs",
    ("docs/compacted-topics.md", "$ siltstone topics describe"): (
        "shows hours of a busy topic; tests/unit/siltstone/ops/test_compaction_notes.py has such lines"
    ),
    ("docs/security.md", "siltstone users set-password"): (
        "asks agents elsewhere; tests/integration/siltstone/test_secure_dev.py gives such commands"
    ),
    ("docs/operations/logs-and-traces.md", "jq -cnR --arg event 'would be denied'"): (
        "reads the log of a shadow that the reader has; tests/integration/agents/acls has the lines"
    ),
    ("docs/operations/runbook.md", "# with log.format=json"): (
        "reads the log of agents that the reader has; tests/integration/agents/test_oauth.py has such lines"
    ),
    ("docs/operations/runbook.md", 'jq -nR \'[inputs | fromjson? | select("client not authenticated"'): (
        "reads the log of agents that the reader has; tests/unit/runtime/test_log_bursts.py counts such lines"
    ),
    ("docs/security.md", "openssl req"): "asks for a certificate by an authority of the reader's own",
    ("docs/transactions.md", "echo 'a b a' | siltstone produce lines"): (
        "needs the program above it; tests/conformance/transactions/test_streams.py runs that, and reads its counts"
    ),
    ("docs/reading-topics.md", "pip install"): INSTALLS,
    ("docs/reading-topics.md", "psql -c"): SERVERS,
    ("docs/spark.md", "pip install"): INSTALLS,
    (
        "docs/spark.md",
        "siltstone spark archive",
    ): "takes half a minute; tests/unit/spark_jobs/test_archive.py checks the contents",
    (
        "docs/spark.md",
        "siltstone spark doctor --cluster",
    ): "asks a cluster of the reader's; tests/integration/spark/test_doctor_cluster.py asks one of its own",
    (
        "docs/tables.md",
        "siltstone tables export flights --to parquet:",
    ): "asks a cluster of the reader's; tests/integration/spark/exports/test_stored_exports.py asks one of its own",
    (
        "docs/tables.md",
        "siltstone tables follow flights --to iceberg:",
    ): "goes on for ever; test_killed_processes.py ends it",
    (
        "docs/tables.md",
        "siltstone tables follow flights --to delta:",
    ): "wants a bucket; delta/test_delta_tables.py has one",
    ("docs/tables.md", "siltstone tables follow users"): "goes on for ever; test_tables_cli.py runs it and ends it",
    ("docs/tables.md", "siltstone tables export flights --to iceberg:"): CATALOGS,
    ("docs/tables.md", "export PYICEBERG_CATALOG__SILTSTONE__CREDENTIAL="): CATALOGS,
    ("docs/spark.md", "query = ("): "writes to a bucket of the reader's; test_spark_source.py reads streams",
    ("docs/operations/backup.md", "pg_basebackup"): SERVERS,
    ("docs/operations/backup.md", "cp -a BASE RESTORED"): SERVERS,
    ("docs/operations/logs-and-traces.md", "pip install"): INSTALLS,
    ("docs/operations/monitoring.md", "siltstone probe"): (
        "asks agents elsewhere; tests/integration/siltstone/test_probe.py runs it, and ends it"
    ),
    ("docs/operations/rebuild.md", "siltstone rebuild --dry-run"): SERVERS,
    ("docs/operations/rebuild.md", "siltstone drill"): (
        "asks the reader's cluster; tests/integration/siltstone/drills asks some of its own"
    ),
    ("docs/operations/two-regions.md", "siltstone rebuild --dry-run"): SERVERS,
    ("docs/operations/second-bucket.md", "rclone copy"): SERVERS,
}
"""(page, how the block begins) -> why no test runs it."""


def pages() -> list[Path]:
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "operations").glob("*.md")),
    ]


def examples() -> Iterator[tuple[str, str, str]]:
    """(page, language, text) of every block of a shell or of Python."""
    for page in pages():
        for _, language, text in ANY_FENCE.findall(page.read_text(encoding="utf-8")):
            if language in ("sh", "python", "bash", "console", "sql"):
                yield page.relative_to(ROOT).as_posix(), language, textwrap.dedent(text)


def test_every_example_is_run_or_listed_with_a_reason() -> None:
    unlisted = [
        (page, text.splitlines()[0])
        for page, language, text in examples()
        if not (page in RUN_AS_THEY_STAND and language in ("sh", "python"))
        and not (page == QUERIES_OF and language == "sql")
        and not any(page == of and text.startswith(begin) for of, begin in (*NOT_RUN, *RUN_BY_OTHERS))
    ]
    assert unlisted == []


def test_everything_listed_is_on_its_page_and_run_by_no_other_list() -> None:
    found = list(examples())
    for of, begin in (*NOT_RUN, *RUN_BY_OTHERS):
        here = [language for page, language, text in found if page == of and text.startswith(begin)]
        assert here, (of, begin)
        assert of not in RUN_AS_THEY_STAND or set(here) <= {"bash", "console"}, (of, begin)
    for (page, _), file in RUN_BY_OTHERS.items():
        assert Path(page).name in (ROOT / file).read_text(encoding="utf-8")


def test_every_target_of_make_that_readme_names_is_one() -> None:
    named = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named >= {"demo", "install", "test"} and named <= targets
