"""What `siltstone transactions` says of values."""

from __future__ import annotations

import uuid

from metadata.contract.agents import AgentAddress
from metadata.contract.leases import AgentInfo
from metadata.contract.operators import EnteredPartition, OngoingTransaction, TransactionsView
from metadata.contract.topics import Topic, Watermarks
from metadata.transactions.contract import TransactionInfo, TransactionState
from siltstone.ops.transaction_report import describe_json, held_cells, held_partitions, list_cells, shown, strays_of

TOPIC = Topic(topic_id=uuid.UUID(int=1), name="t", partition_ids=(11, 12), configs={}, created_ms=0)
AGENTS = [
    AgentInfo(writer_id=number, epoch=1, address=AgentAddress(host=f"h{number}", port=9092)) for number in (1, 2, 3)
]


def marks(partition_id: int, start: int, stable: int, high: int) -> Watermarks:
    return Watermarks(partition_id=partition_id, log_start_offset=start, last_stable_offset=stable, high_watermark=high)


def info(state: TransactionState, started_ms: int | None) -> TransactionInfo:
    return TransactionInfo(
        transactional_id="a",
        producer_id=7,
        producer_epoch=2,
        state=state,
        txn_seq=3,
        timeout_ms=60_000,
        started_ms=started_ms,
        updated_ms=1_000,
        owner_id=1,
        coordinator_epoch=5,
        client_version=2,
        partitions={},
        group_ids=("g",),
    )


def test_the_oldest_transaction_of_a_partition_holds_its_readers() -> None:
    held = held_partitions({12: 9, 11: 4}, [TOPIC], {11: marks(11, 0, 4, 10), 12: marks(12, 0, 3, 10)})
    assert [(each.name, each.holds, each.held_back) for each in held] == [("t-0", True, 6), ("t-1", False, 7)]
    assert held_cells(held[0]) == ["t-0", "4", "4", "10", "6", "this one"]
    assert held_cells(held[1])[-1] == "an earlier one"


def test_a_transaction_that_begins_below_the_log_start_holds_readers_there() -> None:
    [held] = held_partitions({11: 4}, [TOPIC], {11: marks(11, 6, 6, 10)})
    assert held.holds and held.held_back == 4


def test_a_partition_without_a_record_or_without_a_topic_is_shown_and_holds_nothing() -> None:
    gone, empty = held_partitions({99: 4, 12: None}, [TOPIC], {12: marks(12, 0, 10, 10)})
    assert held_cells(gone) == ["partition id 99", "4", "-", "-", "0", "-"]
    assert held_cells(empty) == ["t-1", "-", "10", "10", "0", "-"]


def test_groups_are_those_of_an_ongoing_transaction_alone() -> None:
    ended = shown(info(TransactionState.COMPLETE_COMMIT, None), AGENTS, 9_000)
    going = shown(info(TransactionState.ONGOING, 2_000), AGENTS, 9_000)
    assert describe_json(ended, [])["groups"] == [] and describe_json(going, [])["groups"] == ["g"]
    assert list_cells(ended)[-1] == "-" and list_cells(going)[-1] == "7s"


def test_without_agents_nobody_coordinates() -> None:
    assert list_cells(shown(info(TransactionState.EMPTY, None), [], 0))[4] == "none"
    assert list_cells(shown(info(TransactionState.EMPTY, None), AGENTS, 0))[4] in {"h1:9092", "h2:9092", "h3:9092"}


def test_partitions_of_producers_without_an_ongoing_transaction_are_strays() -> None:
    view = TransactionsView(
        watermarks=[marks(11, 0, 2, 9), marks(12, 0, 0, 3)],
        ongoing=[OngoingTransaction("a", 7, 2, 3)],
        entered=[
            EnteredPartition(11, 5, 1, 1, 2),
            EnteredPartition(11, 7, 2, 3, 4),
            EnteredPartition(12, 5, 1, 1, 0),
            EnteredPartition(12, 6, 0, 1, None),
        ],
        aborted=[],
    )
    found = [
        (each.producer_id, each.producer_epoch, [one.name for one in each.held]) for each in strays_of(view, [TOPIC])
    ]
    assert found == [(5, 1, ["t-0", "t-1"]), (6, 0, ["t-1"])]
