"""The operations that there are on a resource of each type, besides ALL. Agents ask for no others.

They are those of Kafka's `AclEntry.supportedOperations`, by which `kafka-acls` judges too.
"""

from __future__ import annotations

from security.acls.values import Operation, ResourceType

TOPIC_OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
GROUP_OPERATIONS = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
TRANSACTIONAL_ID_OPERATIONS = (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT)
OPERATIONS_ON = {
    ResourceType.TOPIC: TOPIC_OPERATIONS,
    ResourceType.GROUP: GROUP_OPERATIONS,
    ResourceType.CLUSTER: CLUSTER_OPERATIONS,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID_OPERATIONS,
}
