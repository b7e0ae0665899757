"""The rare orders of events in transactions, by their numbers in the design, and how often each came about.

They are counted where they are seen: at the store (`services.py`), or by a client.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class Order(StrEnum):
    COMMIT_BEHIND_END = "order 1: records come behind the end of their transaction, refused"
    NEXT_TRANSACTION = "order 2: records of an earlier transaction come in the next one, refused"
    ABORT_AFTER_ENTER = "order 3: aborted between entering and commit, refused"
    ENTER_REPEATED = "order 4: entered, answer lost, entered again"
    END_REPEATED = "order 5: end in doubt, repeated under its key"
    LATE_END = "order 6: lost end of an older coordinator comes late, no effect"
    FROZEN_END = "order 7: coordinator asleep past its lease ends, fenced"
    TWO_INITS = "order 8: two producers of one id at two agents, one is fenced"
    ZOMBIE_DATA = "order 9: records of an older epoch come after InitProducerId, refused"
    SWEEP_AND_COMMIT = "order 10: timeout and EndTxn of one transaction"
    TWO_SWEEPS = "order 11: two agents time out one transaction"
    LATE_SECOND_END = "order 12: EndTxn (5) again in the next transaction, refused"
    LATE_SECOND_DATA = "order 13: Produce (12) of an earlier epoch again"
    EPOCHS_USED_UP = "order 14: last epoch committed, answer lost, asked again"
    INIT_AT_LAST_EPOCH = "order 15: InitProducerId in a transaction of the last epoch"
    UNSTABLE_OFFSETS = "order 16: new generation reads stable offsets amid a transaction"
    ZOMBIE_OFFSETS = "order 17: TxnOffsetCommit of an older generation, refused"
    GROUP_MOVED = "order 18: group moved between TxnOffsetCommit and the end"
    PLAIN_OFFSETS = "order 19: plain OffsetCommit between TxnOffsetCommit and the end"
    TOPIC_DELETED = "order 20: topic deleted amid a transaction"
    RECORDS_DELETED = "order 21: records deleted amid a transaction"
    STARTED_COLD = "order 24: cold start amid a transaction"
    OWN_END_EARLY = "order 25: own end taken in before older files"
    DEAD_FILE_BEGINS = "order 23: records of a transaction merged before an agent heard of them"
    LISTED_TWICE = "order 26: an aborted transaction known of two stretches of one answer"
    OLD_LIST = "order 27: extents read that a merge has replaced, with an aborted transaction that it forgot"
    PARTIAL_MERGE = "order 29: a merge takes records of an aborted transaction, and not its marker"
    STABLE_INSIDE = "order 30: the last stable offset lies in an extent of a merge that cleans"
    THREE_IN_ONE_ANSWER = "order 31: committed, aborted and committed in one answer"
    ENTERED_WITHOUT_DATA = "order 33: ended without records on a partition that it entered"
    UNANSWERED_DATA = "order 34: records without an answer (acks 0) in a transaction"
    DRAINED_END = "order 35: agent told to stop while it ends transactions"


ELSEWHERE = {
    22: "tests/unit/agents/tail/test_transactions.py"
    "::test_markers_that_are_heard_of_first_end_nothing_before_their_records_are_seen",
    28: "tests/compaction/transactions/test_transactions.py"
    "::test_consumers_of_either_level_see_what_was_committed_in_any_history",
    32: "tests/integration/metadata/test_postgres_followers.py"
    "::test_an_end_that_comes_before_the_rest_of_its_records_ends_nothing_early",
    36: "tests/integration/siltstone/test_rebuild_transactions.py"
    "::test_producers_from_before_the_loss_are_refused_and_a_new_one_goes_on",
}
"""Orders that cannot happen here, and the tests that make them happen: of Postgres, of a restore, and of markers that
lists outlive (28: readers get the lists of half a grace ago). Here a follower reads the files of all others at one
instant (22)."""


def never_seen(counts: Counter[str]) -> list[str]:
    return [str(order) for order in Order if not counts[order]]
