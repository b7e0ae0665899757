"""Bugs of programs that are started before their schema: they do not wait, or they say that they are ready."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WAITING = "tests/integration/faults/test_waiting_for_the_schema.py"


UPGRADES = (
    Mutant(
        name="a-program-waits-for-no-schema",
        file="siltstone/processes/schema_wait.py",
        text="        while not await self._opens(metadata):\n            await self._clock.sleep_ms(LOOK_MS)\n",
        replacement="        await self._opens(metadata)\n",
        tests=(f"{_WAITING}::test_a_process_without_its_schema_is_alive_and_not_ready_until_the_migration",),
    ),
    Mutant(
        name="a-waiting-agent-says-that-it-is-ready",
        file="siltstone/processes/agent.py",
        text="return [] if agent is not None and agent.ready else",
        replacement="return [] if agent is None or agent.ready else",
        tests=(
            f"{_WAITING}::test_a_process_without_its_schema_is_alive_and_not_ready_until_the_migration",
            f"{_WAITING}::test_a_stop_signal_ends_the_wait_at_once",
        ),
    ),
    Mutant(
        name="a-program-starts-before-its-rights",
        file="siltstone/processes/schema_wait.py",
        text="        while await self._lacks_rights():\n            await self._clock.sleep_ms(LOOK_MS)\n",
        replacement="",
        tests=(
            f"{_WAITING}::test_between_the_schema_and_the_rights_a_process_waits_too",
            f"{_WAITING}::test_rights_that_do_not_come_are_the_business_of_the_process",
        ),
    ),
)
