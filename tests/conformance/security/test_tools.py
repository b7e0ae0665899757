"""Kafka's own tools at a listener with SASL and TLS. They do what the user may do; who may not, or has a wrong
password, is told so in the tool's own words. And they make users and ACLs, which bind at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.servers.kafka import find_jars
from tests.conformance.security.logins import of_java
from tests.conformance.security.secured import SecuredAgent, Way
from tests.conformance.security.tool_answers import CONFIG_FLAGS, PRODUCER, ROWS, Said

TIMEOUT_S = 120
JVM = ("-Xmx128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
ACLS = "org.apache.kafka.tools.AclCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
RECORDS = "a\nb\n"
Run = Callable[..., Said]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_200)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    jars = find_jars()
    if jars is None:
        pytest.skip("Kafka's jars (KAFKA_JARS or KAFKA_HOME) and a JVM are not at hand")

    def run(way: Way, main: str, *words: str) -> Said:
        config = tmp_path / "client.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in of_java(way.login).items()))
        place = ["--bootstrap-server", way.bootstrap, CONFIG_FLAGS.get(main, "--command-config"), str(config)]
        command = jars.command(main, [*place, *words], JVM)
        done = subprocess.run(command, input=RECORDS, capture_output=True, text=True, timeout=TIMEOUT_S)
        return Said(done.returncode, done.stdout + done.stderr)

    return run


def test_each_tool_does_what_the_user_may_do_and_says_what_not(run: Run, secured: SecuredAgent, tmp_path: Path) -> None:
    start = tmp_path / "start.json"
    start.write_text(json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "offset": 0}]}))
    unknown = secured.sasl("SCRAM-SHA-512", password="wrong")
    refused, allowed = secured.sasl("SCRAM-SHA-512", "bob"), secured.sasl("SCRAM-SHA-512")
    wrong: list[object] = []
    for row in ROWS:
        words = [str(start) if word == "START" else word for word in row.words.split()]
        # Who is refused comes first: what is done then cannot be done again.
        asked = ((unknown, row.unknown), (refused, row.refused), (allowed, Said(0, row.allowed)))
        for way, expected in asked:
            said = run(way, row.main, *words)
            # "orders" is what a list leaves out.
            is_told = "orders" in said.text.split() and way is not allowed and "--list" in words
            if said.code != expected.code or expected.text not in said.text or is_told:
                wrong.append((row, way.login.username, said.code, said.text[-1_500:]))
    assert wrong == []


def test_users_and_acls_that_the_tools_make_bind_at_once(run: Run, secured: SecuredAgent) -> None:
    topic = secured.topic()
    ann = secured.sasl("SCRAM-SHA-512")
    carl = ("--entity-type", "users", "--entity-name", "carl")
    may_write = ("--allow-principal", "User:carl", "--operation", "Write", "--topic", topic)

    def as_ann(main: str, *words: str) -> str:
        said = run(ann, main, *words)
        assert said.code == 0, said
        return said.text

    def write(password: str, mechanism: str = "SCRAM-SHA-512") -> Said:
        return run(secured.sasl(mechanism, "carl", password), PRODUCER, "--topic", topic, "--sync")

    def assert_refused(said: Said, error: str) -> None:
        assert said.code == 1 and error in said.text, said

    # a user
    assert_refused(write("first"), "SaslAuthenticationException")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        as_ann(CONFIGS, "--alter", *carl, "--add-config", f"{mechanism}=[iterations=4096,password=first]")
    assert_refused(write("first"), "TopicAuthorizationException")
    # gets a right
    as_ann(ACLS, "--add", *may_write)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert write("first", mechanism).code == 0
    seen = run(secured.sasl("SCRAM-SHA-512", "carl", "first"), TOPICS, "--list").text
    assert seen.split() == [topic], "WRITE implies DESCRIBE, and he has no other right"
    # is denied it by another rule, and again not
    denied = ("--deny-principal", "User:carl", "--operation", "All", "--topic", topic)
    as_ann(ACLS, "--add", *denied)
    assert_refused(write("first"), "TopicAuthorizationException")
    as_ann(ACLS, "--remove", "--force", *denied)
    assert write("first").code == 0
    # loses it
    as_ann(ACLS, "--remove", "--force", *may_write)
    assert_refused(write("first"), "TopicAuthorizationException")
    # gets another password
    as_ann(ACLS, "--add", *may_write)
    as_ann(CONFIGS, "--alter", *carl, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=second]")
    assert_refused(write("first"), "SaslAuthenticationException")
    assert write("second").code == 0
    # is gone
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        as_ann(CONFIGS, "--alter", *carl, "--delete-config", mechanism)
    assert_refused(write("second"), "SaslAuthenticationException")
