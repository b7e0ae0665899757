"""The words of Kafka's command-line tools: to a user with the right, to one without it, and to a wrong password.

The exit codes are the tools' own choice: several end with 0 after a refusal that they print. They run in this order,
on one topic and one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_TOPICS = "org.apache.kafka.tools.TopicCommand"
_CONFIGS = "kafka.admin.ConfigCommand"
_ACLS = "org.apache.kafka.tools.AclCommand"
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONFIG_FLAGS = {PRODUCER: "--producer.config", CONSUMER: "--consumer.config"}
"""Those that do not call it `--command-config`."""

_CREDENTIALS = "Authentication failed: invalid credentials"
_NO_TOPIC = "Topic 'orders' does not exist as expected"
"""A topic that the client may not describe is left out of what the tool has listed."""
_TOPIC, _GROUP, _CLUSTER = (f"{kind}AuthorizationException" for kind in ("Topic", "Group", "Cluster"))
_CARL = "--entity-type users --entity-name carl"
_WRITE = "--allow-principal User:carl --operation Write --topic orders"


@dataclass(frozen=True, slots=True)
class Said:
    """The exit code, and a part of the output. "" is a part of each."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    main: str
    words: str
    """START stands for a file that names the start of the topic."""
    allowed: str
    """A part of the output. The exit code is 0."""
    refused: Said
    unknown: Said = Said(1, _CREDENTIALS)
    """With a wrong password."""


def _cluster(main: str, words: str, allowed: str) -> Row:
    """The right is one on the cluster."""
    return Row(main, words, allowed, Said(1, _CLUSTER))


ROWS: Sequence[Row] = (
    Row(_TOPICS, "--create --topic orders --partitions 1", "Created topic", Said(1, "no right to do this to topic")),
    Row(_TOPICS, "--list", "orders", Said(0, "")),
    Row(_TOPICS, "--describe --topic orders", "PartitionCount: 1", Said(1, _NO_TOPIC)),
    Row(_TOPICS, "--alter --topic orders --partitions 2", "", Said(1, _NO_TOPIC)),
    Row(
        _CONFIGS,
        "--alter --entity-type topics --entity-name orders --add-config retention.ms=1000000",
        "Completed updating config for topic orders",
        Said(1, _TOPIC),
    ),
    Row(
        _CONFIGS,
        "--describe --entity-type topics --entity-name orders",
        "retention.ms=1000000",
        Said(0, "The topic 'orders' doesn't exist"),
    ),
    Row(PRODUCER, "--topic orders --sync", "", Said(1, _TOPIC)),
    # What its client says goes to a log alone, and the tool ends with 0.
    Row(
        CONSUMER,
        "--topic orders --group readers --from-beginning --max-messages 2 --timeout-ms 60000",
        "Processed a total of 2 messages",
        Said(0, "Processed a total of 0 messages"),
        Said(0, "Processed a total of 0 messages"),
    ),
    Row(
        "org.apache.kafka.tools.GetOffsetShell",
        "--topic orders",
        "orders:0:",
        Said(1, "Could not match any topic-partitions"),
    ),
    Row(_GROUPS, "--list", "readers", Said(0, ""), Said(0, "Failed to find brokers to send ListGroups")),
    Row(_GROUPS, "--describe --group readers", "LAG", Said(0, _GROUP), Said(0, _CREDENTIALS)),
    Row(
        _GROUPS,
        "--reset-offsets --group readers --topic orders --to-earliest --execute",
        "NEW-OFFSET",
        Said(0, _GROUP),
        Said(0, _CREDENTIALS),
    ),
    Row(
        _GROUPS,
        "--delete-offsets --group readers --topic orders",
        "Request succeeded for deleting offsets",
        Said(0, "Group authorization failed"),
        Said(0, _CREDENTIALS),
    ),
    Row(_GROUPS, "--delete --group readers", "was successful", Said(0, _GROUP), Said(0, _CREDENTIALS)),
    _cluster(_ACLS, f"--add {_WRITE}", "principal=User:carl, host=*, operation=WRITE, permissionType=ALLOW"),
    _cluster(_ACLS, "--list --topic orders", "principal=User:carl, host=*, operation=WRITE, permissionType=ALLOW"),
    _cluster(_ACLS, f"--remove --force {_WRITE}", ""),
    _cluster(
        _CONFIGS,
        f"--alter {_CARL} --add-config SCRAM-SHA-512=[iterations=4096,password=carls]",
        "Completed updating config for user carl",
    ),
    _cluster(_CONFIGS, f"--describe {_CARL}", "SCRAM-SHA-512=iterations=4096"),
    _cluster(_CONFIGS, f"--alter {_CARL} --delete-config SCRAM-SHA-512", "Completed updating config for user carl"),
    _cluster(
        _CONFIGS,
        f"--alter {_CARL} --add-config producer_byte_rate=1000000",
        "Completed updating config for user carl",
    ),
    _cluster(_CONFIGS, f"--describe {_CARL}", "producer_byte_rate=1000000"),
    _cluster(_CONFIGS, f"--alter {_CARL} --delete-config producer_byte_rate", "Completed updating config"),
    Row(
        "org.apache.kafka.tools.DeleteRecordsCommand",
        "--offset-json-file START",
        "low_watermark: 0",
        Said(0, _TOPIC),
        Said(0, _CREDENTIALS),
    ),
    Row("org.apache.kafka.tools.BrokerApiVersionsCommand", "", "Produce(0): ", Said(0, "Produce(0): ")),
    Row(_TOPICS, "--delete --topic orders", "", Said(1, _NO_TOPIC)),
)
