"""Where Kafka 4.1.1 and we differ on purpose, each with its reason. Everything else is a difference to mend.

OF_SERVERS are seen by a super user too, to whom nothing is refused: they have nothing to do with rights. OF_REFUSALS
are seen by clients without a right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.conformance.security.beside.comparing import Difference
from wire.api import APIS

_CODE = r"error_code$"


@dataclass(frozen=True, slots=True)
class Known:
    apis: str
    """Regular expressions: of the API's whole name, of a part of the question's label, and of a part of the path."""
    labels: str
    paths: str
    reason: str
    kafka: object = None
    ours: object = None
    """None: whatever it is."""

    def explains(self, difference: Difference) -> bool:
        question = difference.question
        return (
            re.fullmatch(self.apis, APIS[question.key].name) is not None
            and re.search(self.labels, question.label) is not None
            and re.search(self.paths, difference.path) is not None
            and self.kafka in (None, difference.kafka)
            and self.ours in (None, difference.ours)
        )


OF_SERVERS: Sequence[Known] = (
    Known(
        ".*",
        "",
        r"\[__(consumer_offsets|transaction_state)\b",
        "Kafka keeps offsets and transactions in topics of its own",
        ours="absent",
    ),
    Known("ApiVersions", "", r"^\.(finalized|supported)_features", "the features of a Kafka are not ours"),
    Known("DescribeTransactions", "", r"\.producer_(id|epoch)$", "-1 says better than 0 that there is no producer"),
    Known(
        ".*DelegationToken",
        "",
        "",
        "Kafka has no delegation tokens here for want of a secret, we have none at all; the errors and the empty"
        " fields differ",
    ),
    Known("CreateTopics", "", r"\.topic_id$", "Kafka invents an id for a topic that is only checked"),
    Known(
        "DescribeConfigs",
        "",
        r"\[(4 |16 m|32 \w+)\]\.configs$",
        "groups and subscriptions of metrics have no configs here, and nothing is set for all brokers",
        ours="none",
    ),
    Known(
        "IncrementalAlterConfigs",
        "",
        r"\[(16 m|32 g1)\]\." + _CODE,
        "groups and subscriptions of metrics have no configs here",
        ours=40,
    ),
    Known(
        "AlterConfigs",
        "",
        r"\[4 \]\." + _CODE,
        "Kafka wants min.insync.replicas to stay among the configs of all brokers",
        kafka=40,
    ),
    Known(
        "AlterReplicaLogDirs",
        "",
        r"\[absent\].*" + _CODE,
        "we look for the topic first, Kafka for the folder",
        kafka=57,
        ours=3,
    ),
    Known("DescribeLogDirs", "", r"\.(total|usable)_bytes$", "an object store has no size", ours=-1),
    Known(
        "DescribeUserScramCredentials",
        "all",
        r"^\.results\[(admin|ann|bob|probe)\]",
        "Kafka has the users of PLAIN in its settings",
        kafka="absent",
    ),
    Known("Metadata", "made by reading", r"^\.topics\[absent\]", "our answer waits for the topic, Kafka's does not"),
    Known(
        "UpdateFeatures",
        "",
        r"^\.(error_code|results\[nonsense\])",
        "Kafka gives the error of the first feature to the request, we give each feature its own",
    ),
)
OF_REFUSALS: Sequence[Known] = (
    Known(
        "Metadata",
        "all",
        r"^\.topics\[__.*topic_authorized_operations$",
        "Kafka keeps offsets and transactions in topics of its own",
        ours="absent",
    ),
    Known(
        "ListPartitionReassignments",
        "named",
        r"^\.topics\[",
        "Kafka's refusal repeats the request as if the partitions were on the move",
        kafka="there",
        ours="absent",
    ),
    Known(
        "DescribeUserScramCredentials",
        "named",
        r"^\.results\[\]",
        "Kafka's refusal has a result without a name for each user, beside the error of the whole",
        ours="absent",
    ),
)


def reason_for(difference: Difference, known: Sequence[Known]) -> Known | None:
    return next((each for each in known if each.explains(difference)), None)
