"""Every example of README and the guides is run by a test, or listed here with the reason why none runs it.

`tests/integration/siltstone/test_runbook.py` checks of all of them that the commands and their options exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.integration.siltstone.test_docs_examples import FENCE, PAGES

ROOT = Path(__file__).resolve().parents[3]
RUN_AS_THEY_STAND = {*PAGES, "docs/command-line.md"}
"""Pages of which a test runs every block of `sh` and `python`, in order."""
RUN_BY_OTHERS = {
    ("docs/spark.md", "from pyspark.sql import SparkSession"): "tests/integration/spark/test_spark_source.py",
    ("docs/spark.md", 'export JAVA_HOME="$(siltstone spark doctor --java-home)"'): (
        "tests/integration/spark/test_spark_cli.py"
    ),
    ("docs/operations/sizing.md", "siltstone cost --mib-s 100"): "tests/unit/siltstone/ops/test_cost.py",
}
"""(page, how a line of the block begins) -> the test file that reads and runs it."""

INSTALLS = "installs packages, which a test run must not"
NEVER_ENDS = "runs until Ctrl-C; tests/integration/siltstone/test_dev.py starts and stops such processes"
SIZES = "needs a topic or hours of simulated load that the page does not make; tests of the command run it small"
SERVERS = "needs other Postgres servers or an object store with names of the reader's own"
CLIENT = "writes or reads 100,000 records; tests/conformance runs these clients through scenarios of its own"
SHELL = "completes words for a person's own shell; tests of completion ask for the words"
LOGS = "reads log lines that an agent of the reader's wrote"
NOT_RUN = {
    ("README.md", "make demo"): "takes minutes and installs; tests/integration/siltstone/test_demo.py runs the demo",
    ("README.md", "make install"): f"{INSTALLS}; then it is `siltstone dev`, which test_dev.py runs",
    ("docs/look-inside.md", "siltstone compactor simulate"): SIZES,
    ("docs/look-inside.md", "SILTSTONE_METADATA_URL="): NEVER_ENDS,
    ("docs/look-inside.md", "siltstone dev --agents 2"): NEVER_ENDS,
    ("docs/look-inside.md", "siltstone compactor --data"): NEVER_ENDS,
    ("docs/look-inside.md", "siltstone tables export hello"): SIZES,
    ("docs/command-line.md", "eval "): SHELL,
    ("docs/erasure.md", "siltstone topics create orders"): (
        "waits for gc.grace.ms, 15 minutes; test_erase_cli.py waits for erasures with a short grace"
    ),
    ("docs/erasure.md", "openssl pkey"): "needs openssl; test_report.py runs these lines where it is at hand",
    ("docs/reading-topics.md", "pip install"): INSTALLS,
    ("docs/reading-topics.md", "psql -c"): SERVERS,
    ("docs/kafka-clients.md", "kcat -L"): "needs kcat; tests/conformance runs kcat where it is at hand",
    ("docs/kafka-clients.md", "from confluent_kafka import Producer"): CLIENT,
    ("docs/kafka-clients.md", "from kafka import KafkaProducer"): CLIENT,
    ("docs/kafka-clients.md", "import asyncio"): "waits for records for ever; tests/conformance runs aiokafka",
    ("docs/kafka-clients.md", "from kafka import KafkaConsumer"): CLIENT,
    ("docs/spark.md", "pip install"): INSTALLS,
    (
        "docs/spark.md",
        "siltstone spark archive",
    ): "takes half a minute; tests/unit/spark_jobs/test_archive.py checks the contents",
    ("docs/spark.md", "query = ("): "writes to a bucket of the reader's; test_spark_source.py reads streams",
    ("docs/operations/backup.md", "pg_basebackup"): SERVERS,
    ("docs/operations/logs-and-traces.md", "# "): LOGS,
    ("docs/operations/logs-and-traces.md", "pip install"): INSTALLS,
    ("docs/operations/rebuild.md", "siltstone rebuild --dry-run"): SERVERS,
    ("docs/operations/rebuild.md", "mkdir drill"): SERVERS,
    ("docs/operations/rebuild.md", "URL="): SERVERS,
    ("docs/operations/rebuild.md", "siltstone dev --data drill"): NEVER_ENDS,
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
        for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in ("sh", "python", "bash"):
                yield page.relative_to(ROOT).as_posix(), language, text


def test_every_example_is_run_or_listed_with_a_reason() -> None:
    unlisted = [
        (page, text.splitlines()[0])
        for page, language, text in examples()
        if not (page in RUN_AS_THEY_STAND and language != "bash")
        and not any(page == of and text.startswith(begin) for of, begin in (*NOT_RUN, *RUN_BY_OTHERS))
    ]
    assert unlisted == []


def test_everything_listed_is_on_its_page_and_run_by_no_other_list() -> None:
    found = list(examples())
    for of, begin in (*NOT_RUN, *RUN_BY_OTHERS):
        here = [language for page, language, text in found if page == of and text.startswith(begin)]
        assert here, (of, begin)
        assert of not in RUN_AS_THEY_STAND or set(here) == {"bash"}, (of, begin)
    for (page, _), file in RUN_BY_OTHERS.items():
        assert Path(page).name in (ROOT / file).read_text(encoding="utf-8")


def test_every_target_of_make_that_readme_names_is_one() -> None:
    named = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named >= {"demo", "install", "test"} and named <= targets
