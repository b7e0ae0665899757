"""Kafka's command-line tools beside a cluster: each command, its exit code, and words of its output.

`test_kafka_tools.py` runs each row where Kafka's jars are at hand, and compares with the last run that was kept in
`tools_seen.json`. `docs/kafka-coverage.md` shows that run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SEEN_FILE = Path(__file__).with_name("tools_seen.json")


@dataclass(frozen=True, slots=True)
class ToolRow:
    tool: str
    """The name of Kafka's script."""
    main: str
    words: str
    """The arguments. The address goes before them, or where ADDRESS is. TOPIC stands for a topic, SAME and OTHER for
    files with its present and with other replicas, START for one with
    its log start, NODE for the id of an agent, EMPTY for an empty file."""
    code: int
    says: str = ""
    """Part of the output."""

    @property
    def command(self) -> str:
        return f"{self.tool} {self.words}".strip()


@dataclass(frozen=True, slots=True)
class SeenTools:
    """A run of all rows."""

    kafka: str
    """The version of the tools."""
    codes: Mapping[str, int]
    """Exit codes by command."""

    def text(self) -> str:
        return json.dumps({"kafka": self.kafka, "codes": dict(self.codes)}, indent=1) + "\n"


def last_seen() -> SeenTools:
    return SeenTools(**json.loads(SEEN_FILE.read_text()))


_CONFIGS = "kafka.admin.ConfigCommand"
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_TOOLS = "org.apache.kafka.tools"
_FEATURES = "org.apache.kafka.tools.FeatureCommand"

TOOL_ROWS = (
    ToolRow("kafka-topics", f"{_TOOLS}.TopicCommand", "--describe --topic TOPIC", 0, "ReplicationFactor: 2"),
    ToolRow("kafka-topics", f"{_TOOLS}.TopicCommand", "--describe --topic no-such-topic", 1, "does not exist"),
    ToolRow("kafka-topics", f"{_TOOLS}.TopicCommand", "--create --topic TOPIC", 1, "exists already"),
    ToolRow("kafka-get-offsets", f"{_TOOLS}.GetOffsetShell", "--topic TOPIC", 0, ":0:0"),
    ToolRow("kafka-consumer-groups", f"{_TOOLS}.consumer.group.ConsumerGroupCommand", "--list", 0),
    ToolRow(
        "kafka-consumer-groups",
        f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
        "--describe --group no-such-group",
        0,
        "GroupIdNotFoundException",
    ),
    ToolRow(
        "kafka-delete-records", f"{_TOOLS}.DeleteRecordsCommand", "--offset-json-file START", 0, "low_watermark: 0"
    ),
    ToolRow("kafka-console-producer", f"{_TOOLS}.ConsoleProducer", "--topic TOPIC", 0),
    ToolRow(
        "kafka-console-consumer",
        f"{_TOOLS}.consumer.ConsoleConsumer",
        "--topic TOPIC --partition 0 --offset earliest --timeout-ms 3000",
        0,
        "Processed a total of 0 messages",
    ),
    ToolRow("kafka-configs", _CONFIGS, "--describe --entity-type users", 0),
    ToolRow("kafka-configs", _CONFIGS, "--describe --entity-type broker-loggers --entity-name NODE", 0, "root="),
    ToolRow("kafka-configs", _CONFIGS, "--describe --entity-type groups --entity-name g", 0),
    ToolRow("kafka-configs", _CONFIGS, "--describe --entity-type client-metrics", 0),
    ToolRow(
        "kafka-configs",
        _CONFIGS,
        "--alter --entity-type users --entity-name a --add-config producer_byte_rate=1",
        0,
        "Completed updating config for user a",
    ),
    ToolRow("kafka-reassign-partitions", _REASSIGN, "--execute --reassignment-json-file SAME", 0, "Successfully"),
    ToolRow("kafka-reassign-partitions", _REASSIGN, "--verify --reassignment-json-file SAME", 0, "is completed"),
    ToolRow("kafka-reassign-partitions", _REASSIGN, "--execute --reassignment-json-file OTHER", 1, "nothing to move"),
    ToolRow("kafka-reassign-partitions", _REASSIGN, "--list", 0, "No partition reassignments found"),
    ToolRow(
        "kafka-leader-election",
        "org.apache.kafka.tools.LeaderElectionCommand",
        "--election-type preferred --all-topic-partitions",
        0,
    ),
    ToolRow("kafka-features", _FEATURES, "describe", 0),
    ToolRow("kafka-features", _FEATURES, "upgrade --feature transaction.version=2", 1, "no features with levels"),
    ToolRow(
        "kafka-metadata-quorum",
        "org.apache.kafka.tools.MetadataQuorumCommand",
        "describe --status",
        1,
        "DESCRIBE_QUORUM",
    ),
    ToolRow("kafka-acls", f"{_TOOLS}.AclCommand", "--list", 1, "SecurityDisabledException"),
    ToolRow(
        "kafka-acls",
        f"{_TOOLS}.AclCommand",
        "--add --allow-principal User:a --operation Read --topic TOPIC",
        1,
        "SecurityDisabledException",
    ),
    ToolRow(
        "kafka-delegation-tokens",
        f"{_TOOLS}.DelegationTokenCommand",
        "--describe --command-config EMPTY",
        1,
        "Delegation Token",
    ),
    ToolRow("kafka-cluster", f"{_TOOLS}.ClusterTool", "cluster-id --bootstrap-server ADDRESS", 0, "Cluster ID: "),
    ToolRow("kafka-cluster", f"{_TOOLS}.ClusterTool", "list-endpoints --bootstrap-server ADDRESS", 0, "127.0.0.1"),
    ToolRow("kafka-log-dirs", f"{_TOOLS}.LogDirsCommand", "--describe", 0, '"logDir"'),
    ToolRow("kafka-broker-api-versions", f"{_TOOLS}.BrokerApiVersionsCommand", "", 0, "Produce(0): "),
    ToolRow("kafka-client-metrics", "org.apache.kafka.tools.ClientMetricsCommand", "--list", 0),
    ToolRow("kafka-groups", "org.apache.kafka.tools.GroupsCommand", "--list", 0),
    ToolRow("kafka-transactions", "org.apache.kafka.tools.TransactionsCommand", "list", 0),
)
