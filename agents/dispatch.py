"""API key -> handler. One row per API of `wire/api.py`; a test compares the two.

A handler takes (broker, header, request) and returns the answer, an awaitable of the answer, or None for "no answer".
Many requests of a `pipelined` handler may wait at a time on one connection. For all other handlers, the next request of
a connection begins only when the last one is answered. Kafka does the same; it also bounds the memory that one
connection can take.

Each row says which rights its handler asks for: operations on types of resources, or NOTHING. The handler itself asks,
because each API refuses, or leaves out, in its own way. A test holds what handlers ask against what is said here.

A new API is: a module in wire/messages, a row in wire/api.py, a module in handlers, a row here, and a request in
tests/integration/agents/test_every_version.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeAlias

from agents.answers import HeldAnswer
from agents.broker import Broker
from agents.handlers import (
    acls,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    client_quotas,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata_api,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    scram_credentials,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    without_security,
    write_txn_markers,
)
from security.acls.values import Operation, ResourceType
from wire.api import API_VERSIONS, RequestHeader
from wire.schema import Message

Answer: TypeAlias = Message | HeldAnswer | None
Handle: TypeAlias = Callable[[Broker, RequestHeader, Any], Answer | Awaitable[Answer]]

PRODUCE: Final = 0


Needs: TypeAlias = frozenset[tuple[ResourceType, Operation]]


@dataclass(frozen=True, slots=True)
class Handler:
    handle: Handle
    needs: Needs
    """The rights that it asks for; which of them a request needs is in its hands."""
    pipelined: bool = False


def _of(handler: ModuleType | Handle, needs: Needs, *more: Needs, pipelined: bool = False) -> Handler:
    handle: Handle = handler.handle if isinstance(handler, ModuleType) else handler
    return Handler(handle, needs.union(*more), pipelined)


def _to(resource_type: ResourceType, *operations: Operation) -> Needs:
    return frozenset((resource_type, operation) for operation in operations)


NOTHING: Final[Needs] = frozenset()
_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTION = ResourceType.TRANSACTIONAL_ID
_READ, _WRITE, _CREATE, _DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE = Operation.ALTER, Operation.DESCRIBE
_ALTER_CONFIGS, _DESCRIBE_CONFIGS = Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS


HANDLERS: Final[Mapping[int, Handler]] = {
    PRODUCE: _of(produce, _to(_TOPIC, _WRITE), _to(_TRANSACTION, _WRITE), pipelined=True),
    1: _of(fetch, _to(_TOPIC, _READ)),
    2: _of(list_offsets, _to(_TOPIC, _DESCRIBE)),
    3: _of(metadata_api, _to(_TOPIC, _DESCRIBE, _CREATE), _to(_CLUSTER, _CREATE, _DESCRIBE)),
    8: _of(offset_commit, _to(_GROUP, _READ), _to(_TOPIC, _READ)),
    9: _of(offset_fetch, _to(_GROUP, _DESCRIBE), _to(_TOPIC, _DESCRIBE)),
    10: _of(find_coordinator, _to(_GROUP, _DESCRIBE), _to(_TRANSACTION, _DESCRIBE)),
    11: _of(join_group, _to(_GROUP, _READ)),
    12: _of(heartbeat, _to(_GROUP, _READ)),
    13: _of(leave_group, _to(_GROUP, _READ)),
    14: _of(sync_group, _to(_GROUP, _READ)),
    15: _of(describe_groups, _to(_GROUP, _DESCRIBE)),
    16: _of(list_groups, _to(_CLUSTER, _DESCRIBE), _to(_GROUP, _DESCRIBE)),
    17: _of(without_security.sasl_handshake, NOTHING),
    API_VERSIONS: _of(api_versions, NOTHING),
    19: _of(create_topics, _to(_CLUSTER, _CREATE), _to(_TOPIC, _CREATE, _DESCRIBE_CONFIGS)),
    20: _of(delete_topics, _to(_CLUSTER, _DELETE), _to(_TOPIC, _DELETE, _DESCRIBE)),
    21: _of(delete_records, _to(_TOPIC, _DELETE)),
    22: _of(
        init_producer_id, _to(_TRANSACTION, _WRITE), _to(_CLUSTER, Operation.IDEMPOTENT_WRITE), _to(_TOPIC, _WRITE)
    ),
    23: _of(offset_for_leader_epoch, _to(_TOPIC, _DESCRIBE), _to(_CLUSTER, Operation.CLUSTER_ACTION)),
    24: _of(add_partitions_to_txn, _to(_TRANSACTION, _WRITE), _to(_TOPIC, _WRITE)),
    25: _of(add_offsets_to_txn, _to(_TRANSACTION, _WRITE), _to(_GROUP, _READ)),
    26: _of(end_txn, _to(_TRANSACTION, _WRITE)),
    27: _of(write_txn_markers, _to(_CLUSTER, _ALTER, Operation.CLUSTER_ACTION)),
    28: _of(txn_offset_commit, _to(_TRANSACTION, _WRITE), _to(_GROUP, _READ), _to(_TOPIC, _READ)),
    29: _of(acls.describe, _to(_CLUSTER, _DESCRIBE)),
    30: _of(acls.create, _to(_CLUSTER, _ALTER)),
    31: _of(acls.delete, _to(_CLUSTER, _ALTER)),
    32: _of(
        describe_configs,
        _to(_TOPIC, _DESCRIBE_CONFIGS),
        _to(_GROUP, _DESCRIBE_CONFIGS),
        _to(_CLUSTER, _DESCRIBE_CONFIGS),
    ),
    33: _of(alter_configs, _to(_TOPIC, _ALTER_CONFIGS), _to(_GROUP, _ALTER_CONFIGS), _to(_CLUSTER, _ALTER_CONFIGS)),
    34: _of(alter_replica_log_dirs, _to(_CLUSTER, _ALTER)),
    35: _of(describe_log_dirs, _to(_CLUSTER, _DESCRIBE)),
    36: _of(without_security.sasl_authenticate, NOTHING),
    37: _of(create_partitions, _to(_TOPIC, _ALTER)),
    38: _of(without_security.create_token, NOTHING),
    39: _of(without_security.renew_token, NOTHING),
    40: _of(without_security.expire_token, NOTHING),
    41: _of(without_security.describe_tokens, NOTHING),
    42: _of(delete_groups, _to(_GROUP, _DELETE)),
    43: _of(elect_leaders, _to(_CLUSTER, _ALTER)),
    44: _of(
        incremental_alter_configs,
        _to(_TOPIC, _ALTER_CONFIGS),
        _to(_GROUP, _ALTER_CONFIGS),
        _to(_CLUSTER, _ALTER_CONFIGS),
    ),
    45: _of(alter_partition_reassignments, _to(_CLUSTER, _ALTER)),
    46: _of(list_partition_reassignments, _to(_CLUSTER, _DESCRIBE)),
    47: _of(offset_delete, _to(_GROUP, _DELETE), _to(_TOPIC, _READ)),
    48: _of(client_quotas.describe, _to(_CLUSTER, _DESCRIBE_CONFIGS)),
    49: _of(client_quotas.alter, _to(_CLUSTER, _ALTER_CONFIGS)),
    50: _of(scram_credentials.describe, _to(_CLUSTER, _DESCRIBE)),
    51: _of(scram_credentials.alter, _to(_CLUSTER, _ALTER)),
    57: _of(update_features, _to(_CLUSTER, _ALTER)),
    60: _of(describe_cluster, _to(_CLUSTER, _DESCRIBE)),
    61: _of(describe_producers, _to(_TOPIC, _READ)),
    64: _of(unregister_broker, _to(_CLUSTER, _ALTER)),
    65: _of(list_transactions.describe, _to(_TRANSACTION, _DESCRIBE), _to(_TOPIC, _DESCRIBE)),
    66: _of(list_transactions, _to(_TRANSACTION, _DESCRIBE)),
    74: _of(list_config_resources, _to(_CLUSTER, _DESCRIBE_CONFIGS)),
}
