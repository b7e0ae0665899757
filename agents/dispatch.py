"""API key -> handler. One row per API of `wire/api.py`; a test compares the two.

A handler takes (broker, header, request) and returns the answer, an awaitable of the answer, or None for "no answer".
Many requests of a `pipelined` handler may wait at a time on one connection. For all other handlers, the next request of
a connection begins only when the last one is answered. Kafka does the same; it also bounds the memory that one
connection can take.

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
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
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
    sync_group,
    unregister_broker,
    update_features,
    without_security,
)
from wire.api import RequestHeader
from wire.schema import Message

Answer: TypeAlias = Message | HeldAnswer | None
Handle: TypeAlias = Callable[[Broker, RequestHeader, Any], Answer | Awaitable[Answer]]

PRODUCE: Final = 0
API_VERSIONS: Final = 18


@dataclass(frozen=True, slots=True)
class Handler:
    handle: Handle
    pipelined: bool = False


def _of(module: ModuleType, *, pipelined: bool = False) -> Handler:
    return Handler(module.handle, pipelined)


HANDLERS: Final[Mapping[int, Handler]] = {
    PRODUCE: _of(produce, pipelined=True),
    1: _of(fetch),
    2: _of(list_offsets),
    3: _of(metadata_api),
    8: _of(offset_commit),
    9: _of(offset_fetch),
    10: _of(find_coordinator),
    11: _of(join_group),
    12: _of(heartbeat),
    13: _of(leave_group),
    14: _of(sync_group),
    15: _of(describe_groups),
    16: _of(list_groups),
    17: Handler(without_security.sasl_handshake),
    API_VERSIONS: _of(api_versions),
    19: _of(create_topics),
    20: _of(delete_topics),
    21: _of(delete_records),
    22: _of(init_producer_id),
    23: _of(offset_for_leader_epoch),
    29: Handler(without_security.describe_acls),
    30: Handler(without_security.create_acls),
    31: Handler(without_security.delete_acls),
    32: _of(describe_configs),
    33: _of(alter_configs),
    34: _of(alter_replica_log_dirs),
    35: _of(describe_log_dirs),
    36: Handler(without_security.sasl_authenticate),
    37: _of(create_partitions),
    38: Handler(without_security.create_token),
    39: Handler(without_security.renew_token),
    40: Handler(without_security.expire_token),
    41: Handler(without_security.describe_tokens),
    42: _of(delete_groups),
    43: _of(elect_leaders),
    44: _of(incremental_alter_configs),
    45: _of(alter_partition_reassignments),
    46: _of(list_partition_reassignments),
    47: _of(offset_delete),
    48: Handler(without_security.describe_quotas),
    49: Handler(without_security.alter_quotas),
    50: Handler(without_security.describe_credentials),
    51: Handler(without_security.alter_credentials),
    57: _of(update_features),
    60: _of(describe_cluster),
    61: _of(describe_producers),
    64: _of(unregister_broker),
    65: Handler(list_transactions.describe),
    66: _of(list_transactions),
    74: _of(list_config_resources),
}
