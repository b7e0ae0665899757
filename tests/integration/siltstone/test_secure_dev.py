"""`siltstone dev --secure`, with the files that it gives to clients, and the users of a cluster."""

from __future__ import annotations

import json
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
from click.testing import CliRunner, Result

from siltstone.cli import main
from siltstone.kafka.security.properties import read_client_config
from tests.fixtures.dev import Dev, running_dev

WAIT_S = 60
PASSWORD = "a password of ann's"
OTHER_PASSWORD = "another password of ann's"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    data = tmp_path_factory.mktemp("secure") / "data"
    with running_dev(data, "--secure", "--agents", "2", "--compactors", "0", "--set", "produce.linger.ms=5") as dev:
        yield dev


def run(*words: str, stdin: str | None = None) -> Result:
    env = {"SILTSTONE_DATA": None, "SILTSTONE_BOOTSTRAP": None, "SILTSTONE_CLIENT_CONFIG": None}
    return CliRunner(env=env).invoke(main, words, input=stdin)


def done(*words: str, stdin: str | None = None) -> str:
    ran = run(*words, stdin=stdin)
    assert ran.exit_code == 0, ran.output
    assert PASSWORD not in ran.output and OTHER_PASSWORD not in ran.output
    return ran.stdout


def eventually(*words: str) -> None:
    """A change that was made in Postgres itself reaches the agents a moment later."""
    deadline_s = time.monotonic() + WAIT_S
    while run(*words).exit_code and time.monotonic() < deadline_s:
        time.sleep(0.1)
    done(*words)


def properties(path: Path) -> dict[str, str]:
    """As a program of librdkafka reads them."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def client_file(dev: Dev, name: str, password: str) -> Path:
    path = dev.data.parent / f"{name}.properties"
    path.touch(mode=0o600)
    admin = (dev.data / "clients" / "admin.properties").read_text()
    admin = re.sub(r"(?m)^sasl\.username=.*", f"sasl.username={name}", admin)
    path.write_text(re.sub(r"(?m)^sasl\.password=.*", f"sasl.password={password}", admin))
    return path


def password_of(dev: Dev) -> str:
    return read_client_config(dev.data / "clients" / "admin.properties").security.password


def test_librdkafka_comes_in_with_the_file_and_not_without(secure: Dev) -> None:
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": secure.bootstrap,
        **properties(secure.data / "clients" / "admin.properties"),
    }
    done("topics", "create", "flights", "--data", str(secure.data))
    admin = confluent_kafka.admin.AdminClient(config)
    producer = confluent_kafka.Producer(config)
    producer.produce("flights", b"value", partition=0)
    assert producer.flush(WAIT_S) == 0
    consumer = confluent_kafka.Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition("flights", 0, 0)])
    message = consumer.poll(WAIT_S)
    assert message is not None and message.error() is None and message.value() == b"value"
    consumer.close()
    assert len(admin.list_topics(timeout=WAIT_S).brokers) == 2
    wrong = confluent_kafka.admin.AdminClient({**config, "sasl.password": "wrong", "log_level": 0})
    with pytest.raises(confluent_kafka.KafkaException):
        wrong.list_topics(timeout=3)


def test_commands_find_the_file_by_the_directory(secure: Dev) -> None:
    data = "--data", str(secure.data)
    done("topics", "create", "orders", *data)
    done("produce", "orders", "--key", "k", *data, stdin="v\n")
    assert done("consume", "orders", "--until-end", *data) == "v\n"
    assert done("get", "orders", "k", *data) == "v\n"
    for words in (
        ("topics", "list"),
        ("topics", "describe", "orders"),
        ("topics", "explain", "orders"),
        ("groups", "list"),
        ("cluster", "info"),
        ("cluster", "config", "get"),
        ("acls", "list"),
        ("consume", "orders", "--group", "by-command", "--until-end"),
        ("groups", "describe", "by-command"),
        ("topics", "trim", "orders", "--before", "end", "--yes"),
    ):
        done(*words, *data)
    java = secure.data / "clients" / "admin.java.properties"
    assert "orders" in done("topics", "list", "--bootstrap", secure.bootstrap, "--client-config", str(java))


def test_without_the_file_the_remedy_is_told(secure: Dev, tmp_path: Path) -> None:
    ran = run("topics", "list", "--bootstrap", secure.bootstrap)
    assert ran.exit_code == 1 and "--client-config" in ran.stderr
    # a file that the user names counts more than that of the directory
    plain = tmp_path / "plain.properties"
    plain.write_text("security.protocol=PLAINTEXT\n")
    assert run("topics", "list", "--data", str(secure.data), "--client-config", str(plain)).exit_code == 1


def test_users_come_and_go(secure: Dev) -> None:
    data = "--data", str(secure.data)
    done("users", "create", "ann", *data, stdin=PASSWORD)
    again = run("users", "create", "ann", *data, stdin=PASSWORD)
    assert again.exit_code == 1 and "set-password ann" in again.stderr
    listed = {each["user"]: each["iterations"] for each in json.loads(done("users", "list", "--json", *data))}
    assert listed["ann"] == {"SCRAM-SHA-256": 4_096, "SCRAM-SHA-512": 4_096}
    # she comes in, and may do nothing until an ACL says so
    done("topics", "create", "hers", *data)
    as_ann = *data, "--client-config", str(client_file(secure, "ann", PASSWORD))
    assert "hers" not in done("topics", "list", *as_ann)
    denied = run("users", "list", *as_ann)
    assert denied.exit_code == 1 and "super.users" in denied.stderr and "has Describe on" in denied.stderr
    denied = run("users", "create", "eve", *as_ann, stdin=PASSWORD)
    assert "error: create user 'eve': CLUSTER_AUTH" in denied.stderr and "has Alter on" in denied.stderr
    denied = run("consume", "hers", "--until-end", *as_ann)
    assert denied.exit_code == 1 and "`siltstone acls create --allow-principal User:NAME --consumer" in denied.stderr
    done("acls", "create", "--allow-principal", "User:ann", "--producer", "--topic", "hers", *data)
    done("produce", "hers", *as_ann, stdin="v\n")
    described = run("topics", "describe", "hers", "--bootstrap", secure.bootstrap, *as_ann[2:])
    assert described.exit_code == 0 and "high watermark" in described.stdout
    assert "needs the right DescribeConfigs" in described.stderr
    # a new password
    done("users", "set-password", "ann", "--mechanism", "scram-sha-512", *data, stdin=OTHER_PASSWORD)
    refused = run("topics", "list", *as_ann)
    assert refused.exit_code == 1 and "refused user 'ann'" in refused.stderr and PASSWORD not in refused.output
    client_file(secure, "ann", OTHER_PASSWORD)
    done("topics", "list", *as_ann)
    # one mechanism goes, then all
    done("users", "delete", "ann", "--mechanism", "SCRAM-SHA-256", "--yes", *data)
    gone = run("users", "delete", "ann", "--mechanism", "SCRAM-SHA-256", "--yes", *data)
    assert gone.exit_code == 1 and "has no SCRAM-SHA-256" in gone.stderr
    asked = run("users", "delete", "ann", *data)
    assert asked.exit_code == 2 and "--yes" in asked.stderr
    done("users", "delete", "ann", "--yes", *data)
    for words in (("set-password", "ann"), ("delete", "ann", "--yes")):
        missing = run("users", *words, *data, stdin=PASSWORD)
        assert missing.exit_code == 1 and "no user 'ann'" in missing.stderr
    assert run("topics", "list", *as_ann).exit_code == 1


def test_a_user_may_change_and_delete_itself(secure: Dev) -> None:
    data = "--data", str(secure.data)
    done("users", "create", "dora", *data, stdin=PASSWORD)
    done("acls", "create", "--allow-principal", "User:dora", "--operation", "All", "--cluster", *data)
    for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
        as_dora = client_file(secure, "dora", PASSWORD)
        as_dora.write_text(as_dora.read_text().replace("SCRAM-SHA-512", mechanism))
        place = "--bootstrap", secure.bootstrap, "--client-config", str(as_dora)
        done("users", "set-password", "dora", *place, stdin=PASSWORD)
    deleted = run("users", "delete", "dora", "--yes", *place)
    assert deleted.exit_code == 0 and "`siltstone users create dora --direct`" in deleted.stderr
    assert "dora" not in done("users", "list", *data)


def test_users_go_to_a_file_and_come_back(secure: Dev, tmp_path: Path) -> None:
    data = "--data", str(secure.data)
    done("users", "create", "bob", "--direct", "--iterations", "8192", *data, stdin=PASSWORD)
    path = tmp_path / "users.jsonl"
    done("users", "export", str(path), *data)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    done("users", "import", str(path), *data)  # nothing to do
    # and through a pipe, which has the users alone
    assert done("users", "export", "-", *data) == path.read_text()
    done("users", "delete", "bob", "--direct", "--yes", *data)
    assert "from stdin" in done("users", "import", "-", *data, stdin=path.read_text())
    done("users", "delete", "bob", "--direct", "--yes", *data)
    done("users", "import", str(path), *data)
    as_bob = client_file(secure, "bob", PASSWORD)
    eventually("topics", "list", "--bootstrap", secure.bootstrap, "--client-config", str(as_bob))
    # another password is not written over
    done("users", "set-password", "bob", "--direct", *data, stdin=OTHER_PASSWORD)
    other = run("users", "import", str(path), *data)
    assert other.exit_code == 1 and "bob" in other.stderr and "another password" in other.stderr
    client_file(secure, "bob", OTHER_PASSWORD)
    eventually("topics", "list", "--bootstrap", secure.bootstrap, "--client-config", str(as_bob))
    done("users", "delete", "bob", "--yes", *data)


def test_the_first_user_is_made_by_the_settings_of_agents(secure: Dev, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f"metadata.url = {json.dumps(secure.run['metadata_url'])}\n")
    done("users", "create", "carl", "--direct", "--config", str(config), stdin=PASSWORD)
    assert "carl" in done("users", "list", "--data", str(secure.data))
    done("users", "export", str(tmp_path / "users.jsonl"), "--config", str(config))


@pytest.mark.timeout(300)
def test_the_next_start_may_be_secure_or_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = "--compactors", "0", "--set", "produce.linger.ms=5"
    place = "--data", str(data)
    with running_dev(data, *options):
        done("topics", "create", "orders", *place)
        done("produce", "orders", *place, stdin="1\n")
    with running_dev(data, "--secure", *options) as dev:
        password = password_of(dev)
        ca = (data / "certificates" / "ca.pem").read_bytes()
        done("produce", "orders", *place, stdin="2\n")
        assert run("topics", "list", "--bootstrap", dev.bootstrap).exit_code == 1
    with running_dev(data, *options) as dev:
        assert dev.run["client_config"] == ""
        done("produce", "orders", *place, stdin="3\n")
        assert "orders" in done("topics", "list", "--bootstrap", dev.bootstrap)
    # then with the same authority and password, although another one was set meanwhile
    done("users", "set-password", "admin", "--direct", *place, stdin=PASSWORD)
    with running_dev(data, "--secure", *options) as dev:
        assert (password_of(dev), (data / "certificates" / "ca.pem").read_bytes()) == (password, ca)
        assert done("consume", "orders", "--until-end", *place).split() == ["1", "2", "3"]
        assert "client config: " in (dev.process.stdout.readline() + dev.process.stdout.readline())  # type: ignore[union-attr]
