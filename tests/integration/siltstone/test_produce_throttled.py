"""`siltstone produce` over its quota says that it waits, and for how long."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from security.quotas.values import DEFAULT, QuotaEntity, QuotaKey
from siltstone.kafka.access.quotas import alter_quotas
from siltstone.kafka.producing import BATCH_BYTES
from tests.fixtures.agents import Dial, StartAgent

RATE, RECORD_BYTES = 100_000, 90_000
MANY = 33
assert MANY * RECORD_BYTES > 10 * RATE + 10 * RATE + BATCH_BYTES, "not even if ten seconds pass before it is over"


async def test_the_wait_is_told_when_it_begins_and_in_sum(start_agent: StartAgent, dial: Dial, tmp_path: Path) -> None:
    # given a quota that lets ten seconds' worth through at once. A write takes what was read by then, up to
    # BATCH_BYTES, and only a write after the one over the quota is told to wait: there must be records left for one.
    running = await start_agent()
    admin = await dial.kafka(running.address)
    await admin.create_topic("t", partitions=1)
    await alter_quotas(admin, QuotaEntity(client_id=DEFAULT), {QuotaKey.PRODUCER_BYTE_RATE: float(RATE)})
    for records, throttled in ((1, False), (MANY, True)):
        lines = tmp_path / "lines"
        lines.write_bytes((b"x" * RECORD_BYTES + b"\n") * records)
        words = ["produce", "t", "--file", str(lines), "--bootstrap", running.address]
        # when
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "siltstone", *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        # then
        assert ran.returncode == 0, ran.stderr
        waits = re.findall(r"throttled: over a quota, the next records wait up to ([0-9.]+) s", ran.stderr)
        in_all = re.findall(r"throttled for up to ([0-9.]+) s in all", ran.stderr)
        assert bool(waits) == bool(in_all) == throttled, ran.stderr
        assert all(0.5 <= float(each) <= 10 for each in waits)
        assert f"wrote {records} record" in ran.stdout and "throttled" not in ran.stdout
