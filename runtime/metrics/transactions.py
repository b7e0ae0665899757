"""Metrics of transactions. No id of a client is a label."""

from __future__ import annotations

from runtime.metrics.declared import Declarations


class TransactionMetrics:
    def __init__(self, declarations: Declarations, *, seconds: tuple[float, ...]) -> None:
        self.open = declarations.gauge(
            "transactions_open", "Transactions of the cluster that have begun and not ended; every agent has them all."
        )
        self.oldest_open_seconds = declarations.gauge(
            "transactions_oldest_open_seconds", "How long ago the first of them began; 0 without any."
        )
        self.held_back_offsets = declarations.gauge(
            "transactions_held_back_offsets",
            "Of the partition where it is the most: the offsets from the last stable one to the high watermark, which"
            " readers of committed records do not get yet; 0 without open transactions. Every agent has that of the"
            " cluster.",
        )
        self.ended_total = declarations.counter(
            "transactions_ended_total",
            "Ends of transactions that this agent made: `committed`, `aborted`, `fenced` (aborted for a new producer of"
            " the id, or by an operator), `timed_out`, `refused` (nothing to end, or not by this producer) or `failed`"
            " (Postgres did not take them).",
            "outcome",
        )
        self.end_seconds = declarations.histogram(
            "transaction_end_seconds",
            "From the request for an end to its outcome, with the wait for its turn.",
            seconds,
        )
        self.enter_seconds = declarations.histogram(
            "transactions_enter_seconds", "Entering the transactions of one L0 file in Postgres.", seconds
        )
        self.fenced_total = declarations.counter(
            "transactional_ids_fenced_total",
            "Transactional ids given up because the store showed that another agent coordinates them.",
        )
