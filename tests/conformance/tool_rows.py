"""What Kafka's command-line tools say to a cluster: the command, its exit code, and words of its output.

`test_kafka_tools.py` runs each row where Kafka's jars are at hand; `docs/kafka-coverage.md` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolRow:
    tool: str
    """The name of Kafka's script."""
    main: str
    words: str
    """The arguments. The address goes before them, or where ADDRESS is. TOPIC stands for a topic, SAME and OTHER for
    files with its present and with other replicas, NODE for the id of an agent, EMPTY for an empty file."""
    code: int
    says: str = ""
    """Part of the output."""


_CONFIGS = "kafka.admin.ConfigCommand"
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_TOOLS = "org.apache.kafka.tools"
_FEATURES = "org.apache.kafka.tools.FeatureCommand"

TOOL_ROWS = (
    ToolRow("kafka-configs", _CONFIGS, "--describe --entity-type users", 0),
    ToolRow("kafka-configs", _CONFIGS, "--describe --entity-type broker-loggers --entity-name NODE", 0, "root="),
    ToolRow("kafka-configs", _CONFIGS, "--describe --entity-type groups --entity-name g", 0),
    ToolRow("kafka-configs", _CONFIGS, "--describe --entity-type client-metrics", 0),
    ToolRow(
        "kafka-configs",
        _CONFIGS,
        "--alter --entity-type users --entity-name a --add-config producer_byte_rate=1",
        1,
        "nobody is throttled",
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
