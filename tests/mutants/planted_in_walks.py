"""Bugs in the bounds on records that a client has unfolded and walked, and in the order of requests meanwhile."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WALKING = "tests/unit/agents/write/test_walking.py"
_WALKS = "tests/integration/write_and_read/test_record_walks.py"

WALKS = (
    Mutant(
        name="each-batch-of-a-request-has-the-budget-for-itself",
        file="agents/write/walking.py",
        text="        budget.bytes_left -= bytes_max - allowance.bytes_left\n",
        replacement="",
        tests=(f"{_WALKING}::test_the_batches_of_a_request_share_a_budget_of_unfolded_bytes",),
    ),
    Mutant(
        name="a-time-in-the-future-is-worth-any-walk",
        file="agents/write/walking.py",
        text=" if unwalked.is_late else None",
        replacement=" if unwalked.is_late and unwalked.rules.internal else None",
        tests=(f"{_WALKING}::test_a_max_timestamp_in_the_future_never_makes_more_work_than_a_turn_allows",),
    ),
    Mutant(
        name="what-zlib-unfolds-before-damage-is-free",
        file="wire/codecs.py",
        text="        # Taken before, given back after: nobody knows how far zlib got when it found damage.\n"
        "        allowance.bytes_left = 0\n",
        replacement="",
        tests=("tests/unit/wire/test_codecs.py::test_what_was_unfolded_in_vain_counts",),
    ),
    Mutant(
        name="a-connection-overtakes-its-own-walk",
        file="agents/write/walks.py",
        text="        return self._last is None\n",
        replacement="        return True\n",
        tests=(
            f"{_WALKS}::test_a_long_walk_is_not_overtaken_by_its_own_connection_but_by_others",
            f"{_WALKS}::test_requests_that_waited_for_their_topic_keep_their_order_in_a_walk",
        ),
    ),
    Mutant(
        name="an-agent-that-stops-forgets-its-walks",
        file="agents/agent.py",
        text="        await self._record_walks.idle()\n",
        replacement="",
        tests=(f"{_WALKS}::test_an_agent_that_stops_takes_the_records_of_a_walk_to_their_end",),
    ),
)
