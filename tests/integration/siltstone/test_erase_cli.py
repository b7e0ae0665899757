"""`siltstone erase` as a user types it, beside a real agent, a compactor, Postgres and a directory of objects."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from metadata.contract.store import MetadataStore
from metadata.erasures.contract import KeyMark
from metadata.urls import open_metadata
from runtime.settings.table import Settings
from siltstone.cli import main
from siltstone.cli.erase.waiting import StillErasingError, wait_for_the_end
from siltstone.cli.options.system_options import SystemOptions, Urls
from siltstone.kafka.client import KafkaClient, KafkaError
from siltstone.ops.erasure.request import hash_of
from siltstone.ops.erasure.tombstones import KeyLog
from storage.local import LocalStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.waiting import until
from wire.records import NewRecord, build_batch

OLD_MS, T_MS, NEW_MS = 1_700_000_000_000, 1_710_000_000_000, 1_720_000_000_000
GRACE_MS = 1_000
COMPACTED = MappingProxyType({"cleanup.policy": "compact", "delete.retention.ms": "500"})
QUICK: dict[str, Any] = {"gc_grace_ms": GRACE_MS, "erase_interval_ms": 200, "job_limit_base_ms": 5_000}
LONG_GRACE = {"gc_grace_ms": 3_600_000, "orphan_age_ms": 3_600_000}


class World:
    """The stores, an agent, a client, and the command line over them."""

    def __init__(self, url: str, objects: Path, metadata: MetadataStore, agent: RunningAgent, client: KafkaClient):
        self.url, self.objects, self.metadata, self.agent, self.client = url, objects, metadata, agent, client
        self.store = agent.store

    @property
    def places(self) -> list[str]:
        return ["--metadata", self.url, "--object-store", self.objects.as_uri()]

    async def run(self, *words: str, stdin: str | None = None) -> Result:
        """In a thread, because the agent and the compactor run in this one."""
        return await asyncio.to_thread(CliRunner().invoke, main, ["erase", *words, *self.places], input=stdin)

    async def erase(self, *words: str, stdin: str | None = None) -> Result:
        return await self.run("request", *words, "--bootstrap", self.agent.address, stdin=stdin)

    async def json(self, *words: str) -> Any:
        ran = await self.run(*words, "--json")
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    async def create(self, topic: str, configs: Mapping[str, str] = MappingProxyType({}), partitions: int = 1) -> None:
        # the records are old, and retention is another way to lose them
        await self.client.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1", **configs})

    async def write(self, topic: str, *pairs: tuple[str, str | None], at_ms: int = OLD_MS, partition: int = 0) -> None:
        records = [NewRecord(at_ms, key.encode(), None if value is None else value.encode()) for key, value in pairs]
        await self.client.produce(topic, partition, build_batch(records))

    async def values(self, topic: str) -> list[tuple[int, str, str | None]]:
        records = await read_all(self.client, topic)
        return [
            (offset, bytes(each.key or b"").decode(), None if each.value is None else bytes(each.value).decode())
            for offset, each in records
        ]

    def holding(self, *texts: str) -> list[str]:
        """The objects that contain any of these texts."""
        found: list[str] = []
        for path in self.objects.rglob("*.silt"):
            body = path.read_bytes()
            if any(text.encode() in body for text in texts):
                found.append(path.name)
        return found


@pytest.fixture
async def world(postgres_url: str, start_agent: StartAgent, dial: Dial, tmp_path: Path) -> AsyncIterator[World]:
    metadata = open_metadata(postgres_url)
    await metadata.open()
    agent = await start_agent(store=LocalStore(tmp_path / "objects"), metadata=metadata, gc_grace_ms=GRACE_MS)
    yield World(postgres_url, tmp_path / "objects", metadata, agent, await dial.kafka(agent.address))
    await agent.agent.stop()
    await metadata.close()


async def test_a_key_of_a_plain_topic_is_in_no_object_and_all_else_stays(
    world: World, start_compactor: StartCompactor, tmp_path: Path
) -> None:
    # given a topic of two partitions whose files hold another topic too
    await world.create("visits", partitions=2)
    await world.create("other")
    for partition in (0, 1):
        await world.write("visits", ("ada", "was in Paris"), ("bob", "was in Rome"), partition=partition)
    await world.write("other", ("ada", "of another topic"))
    before = await world.run("verify", "visits", "--key", "ada")
    assert before.exit_code == 1, before.output
    assert "found: 2 records in " in before.stdout and "value" in before.stdout
    # when
    await start_compactor(store=world.store, metadata=world.metadata, **QUICK)
    done = await world.erase("visits", "--key", "ada", "--yes", "--wait", "--timeout", "60", "--deadline", "1h")
    # then
    assert done.exit_code == 0, done.output
    assert "erasure 1 is requested" in done.stdout and "tables until their next export" in done.stderr
    assert "SHA-256 " in done.stdout and "at the end" in done.stdout
    assert world.holding("was in Paris") == []
    assert await world.values("visits") == [(1, "bob", "was in Rome")]
    assert await world.values("other") == [(0, "ada", "of another topic")]
    for words in (["1"], ["visits", "--key", "ada"]):
        clean = await world.run("verify", *words)
        assert clean.exit_code == 0, clean.output
        assert "in no object: 1 key of visits" in clean.stdout
    found = await world.json("verify", "other", "--key", "nobody")
    assert (found["found"], found["unread"], found["records"]) == ([], [], 1)
    # and a record that is written later is none of the erasure's
    await world.write("visits", ("ada", "is back"))
    assert (await world.run("verify", "1")).exit_code == 0
    assert (await world.run("verify", "visits", "--key", "ada")).exit_code == 1
    await report_is_signed(world, tmp_path)


async def report_is_signed(world: World, folder: Path) -> None:
    key = Ed25519PrivateKey.generate()
    pem = folder / "key.pem"
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path = folder / "report.json"
    shown = await world.run("status", "1", "--report", str(path), "--sign-key", str(pem))
    assert shown.exit_code == 0, shown.output
    key.public_key().verify(path.with_name("report.json.sig").read_bytes(), path.read_bytes())
    report = json.loads(path.read_bytes())
    secret = bytes.fromhex(path.with_name("report.json.secret").read_text())
    digest = hmac.digest(secret, hashlib.new("sha512_256", b"ada").digest(), "sha256").hex()
    assert report["keyed_marks"] == {"0": [[digest, 2, False]], "1": [[digest, 2, False]]}
    assert report["deadline_kept"] and report["account"]["listing"]["objects"] >= 1


async def test_a_key_of_a_compacted_topic_goes_with_its_tombstone(
    world: World, start_compactor: StartCompactor
) -> None:
    # given a key with values, one that was deleted already, and one that stays
    await world.create("users", COMPACTED)
    await world.write("users", ("ada-77", "ada@old"), ("zoe-78", "zoe@old"))
    await world.write("users", ("ada-77", "ada@new"), ("bob", "bob@new"), ("zoe-78", None))
    await start_compactor(store=world.store, metadata=world.metadata, **QUICK)
    # when
    done = await world.erase(
        "users", "--key", "ada-77", "--key", "zoe-78", "--yes", "--wait", "--timeout", "60", "--json"
    )
    # then
    assert done.exit_code == 0, done.output
    state = json.loads(done.stdout)
    assert (state["stage"], state["marks"], state["tombstones"]) == ("done", 2, 2)
    assert world.holding("ada-77", "zoe-78") == []
    assert await world.values("users") == [(3, "bob", "bob@new")]
    assert (await world.run("verify", "1")).exit_code == 0


async def test_with_before_newer_values_stay_and_get_no_tombstone(
    world: World, start_compactor: StartCompactor
) -> None:
    # given a key with a newer value, one without, and a plain topic
    await world.create("users", COMPACTED)
    await world.create("visits")
    for topic in ("users", "visits"):
        await world.write(topic, ("ada-77", "ada@old"), ("zoe-78", "zoe@old"))
        await world.write(topic, ("ada-77", "ada@new"), ("bob", "bob@new"), at_ms=NEW_MS)
    await start_compactor(store=world.store, metadata=world.metadata, **QUICK)
    keys = ("--key", "ada-77", "--key", "zoe-78", "--before", str(T_MS))
    # when
    for topic in ("users", "visits"):
        done = await world.erase(topic, *keys, "--yes", "--wait", "--timeout", "60")
        assert done.exit_code == 0, done.output
    # then
    assert world.holding("ada@old", "zoe-78") == []
    for topic in ("users", "visits"):
        assert await world.values(topic) == [(2, "ada-77", "ada@new"), (3, "bob", "bob@new")]


async def test_status_says_what_an_erasure_waits_on(world: World, start_compactor: StartCompactor) -> None:
    # given no compactor, one erasure that waits for the lag, and one of records in L0
    lag = {"cleanup.policy": "compact", "min.compaction.lag.ms": "60000"}
    await world.create("lagging", lag)
    await world.create("visits")
    for topic in ("lagging", "visits"):
        await world.write(topic, ("ada", "was in Paris"), ("bob", "was in Rome"))
    assert "there is no erasure" in (await world.run("status")).stdout
    for topic in ("lagging", "visits"):
        asked = await world.erase(topic, "--key", "ada", "--yes", "--json", "--deadline", "3d")
        assert asked.exit_code == 0, asked.output
    # then
    shown = await world.run("status", "1")
    assert "waits on: no compactor runs" in shown.stdout and "min.compaction.lag.ms until 2" in shown.stdout
    shown = await world.run("status", "2")
    assert "waits on: 2 L0 files to be merged" in shown.stdout or "L0 file" in shown.stdout
    table = (await world.run("status")).stdout
    assert "lagging" in table and "visits" in table and "erasing" in table
    # when a compactor has merged them, then the rewrite begins later
    await start_compactor(store=world.store, metadata=world.metadata, **{**QUICK, **LONG_GRACE})

    async def later() -> bool:
        (state,) = (await world.json("status", "2"))["erasures"]
        reasons = {each["reason"] for each in state["waits_on"]}
        return reasons == {"it begins later", "files to be rewritten", "dead files in their grace"}

    await until(later)
    # and the report is not there yet
    early = await world.run("status", "2", "--report", "never.json")
    assert early.exit_code == 1 and "erasure 2 is not done" in early.stderr
    assert not Path("never.json").exists()


async def test_an_interrupted_wait_leaves_the_request(world: World, start_compactor: StartCompactor) -> None:
    await world.create("visits")
    await world.write("visits", ("ada", "was in Paris"))
    await start_compactor(store=world.store, metadata=world.metadata, **{**QUICK, **LONG_GRACE})
    words = [sys.executable, "-m", "siltstone", "erase", "visits", "--key", "ada", "--yes", "--wait", *world.places]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    try:
        # when it has said that it is requested
        assert process.stdout is not None
        stdout = await asyncio.to_thread(process.stdout.readline)
        while stdout and "erasure 1 is requested" not in stdout:
            stdout += await asyncio.to_thread(process.stdout.readline)
        process.send_signal(signal.SIGINT)
        _, stderr = await asyncio.to_thread(process.communicate, timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, stderr
    assert "erasure 1 is requested" in stdout and "stopped waiting. The erasure stays" in stderr
    assert len(await world.metadata.erasures.erasures()) == 1
    # and a wait that takes too long ends by itself
    late = await world.erase("visits", "--key", "bob", "--yes", "--wait", "--timeout", "0.1")
    assert late.exit_code == 1 and "erasure 2 is not done after 0 s; it waits on" in late.stderr


async def test_wrong_requests_are_refused_and_nothing_is_stored(world: World, tmp_path: Path) -> None:
    await world.create("users", COMPACTED)
    await world.create("empty")
    await world.write("users", ("ada", "1"))
    keys = tmp_path / "keys.txt"
    keys.write_text("ada\n\nbob\n")
    (tmp_path / "none.txt").touch()
    (tmp_path / "bad.pem").write_text("no key")
    ada = ("--key", "ada", "--yes")
    for words, code, said in (
        (("usres", *ada), 1, "there is no topic 'usres'"),
        (("users", "--yes"), 1, "no key was given"),
        (("users", "--keys-file", str(keys), "--yes"), 1, f"line 2 of {keys} is empty"),
        (("users", "--keys-file", str(tmp_path / "none.txt"), "--yes"), 1, "no key was given"),
        (("users", "--keys-file", "-"), 2, "stdin has the keys"),
        (("users", "--key", "ada"), 2, "stdin is not a terminal"),
        (("users", *ada, "--deadline", "5m"), 1, "the deadline, 5m00s, is too soon"),
        (("users", *ada, "--deadline", "soon"), 2, "'soon' is not a duration"),
        (("users", *ada, "--before", "never"), 2, "'never' is not a time"),
        (("users", *ada, "--timeout", "1"), 2, "--timeout has a meaning only with --wait"),
        (("empty", *ada), 1, "topic empty has no record"),
    ):
        refused = await world.erase(*words)
        assert (refused.exit_code, said in refused.stderr) == (code, True), (words, refused.output)
    nobody = await world.run("request", "users", *ada, "--bootstrap", "127.0.0.1:1")
    assert nobody.exit_code == 1 and "no agent answers at 127.0.0.1:1" in nobody.stderr
    for words, said in (
        (("status", "7"), "there is no erasure 7"),
        (("verify", "7"), "there is no erasure 7"),
        (("verify", "users"), "'users' is not the id of an erasure"),
        (("verify", "7", "--key", "ada"), "leave the keys out to verify erasure 7"),
        (("status", "1", "--report", "r", "--sign-key", str(tmp_path / "bad.pem")), "is no private key in PEM"),
    ):
        refused = await world.run(*words)
        assert refused.exit_code in (1, 2) and said in refused.stderr, refused.output
    assert await world.metadata.erasures.erasures() == []
    assert await world.values("users") == [(0, "ada", "1")]


async def test_a_topic_named_as_a_subcommand_needs_the_word_request(world: World) -> None:
    await world.create("status")
    await world.write("status", ("ada", "1"))
    # keys from stdin, with options before the topic
    asked = await world.erase("--keys-file", "-", "--yes", "--json", "status", stdin="ada\nbob\nada\n")
    assert asked.exit_code == 0, asked.output
    said = json.loads(asked.stdout)
    assert (said["topic"], said["keys"], said["marks"], said["tombstones"]) == ("status", 2, 2, 0)
    assert said["earliest_ms"] < said["deadline_ms"] == 7 * 86_400_000


async def test_keys_that_a_compacted_topic_does_not_have_are_named_before_the_question(world: World) -> None:
    await world.create("users", COMPACTED)
    await world.write("users", ("ada", "1"), ("bob", "2"))
    told = await world.erase("users", "--key", "ada", "--key", "alcie", "--yes")
    assert "1 key without a record now: alcie" in told.stderr and "1 to be written first" in told.stderr
    told = await world.erase("users", "--key", "bob", "--yes")
    assert "without a record" not in told.stderr and "not looked up" not in told.stderr


async def test_a_plain_topic_is_not_searched_for_keys_before_the_question_and_the_command_says_so(world: World) -> None:
    await world.create("orders")
    await world.write("orders", ("ada", "1"))
    told = await world.erase("orders", "--key", "alcie", "--yes")
    assert "not looked up" in told.stderr and "`siltstone erase verify orders` with the same keys" in told.stderr


async def test_a_topic_that_changed_while_the_person_thought_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    async def topic_id() -> uuid.UUID:
        return next(each.topic_id for each in await world.metadata.agents.list_topics() if each.name == "users")

    async def make_again() -> None:
        await world.metadata.agents.delete_topic(await topic_id())
        await until(lambda: made_again(world, "users", COMPACTED))
        await world.write("users", ("ada", "new"))

    async def change_the_policy() -> None:
        await world.metadata.agents.alter_configs(await topic_id(), {"cleanup.policy": "delete"})

    await world.create("users", COMPACTED)
    await world.write("users", ("ada", "old"))
    for change, why in ((make_again, "was deleted and made again"), (change_the_policy, "has another cleanup.policy")):

        def confirm(*_: object, change: Callable[[], Coroutine[Any, Any, None]] = change) -> None:
            asyncio.run_coroutine_threadsafe(change(), loop).result(60)

        monkeypatch.setattr("siltstone.cli.erase.request.confirm", confirm)
        refused = await world.erase("users", "--key", "ada", "--yes")
        assert refused.exit_code == 1 and why in refused.stderr, refused.output
        assert await world.values("users") == [(0, "ada", "new")]
    assert await world.metadata.erasures.erasures() == []


async def test_verify_says_that_it_did_not_search_a_deleted_topic_of_the_same_name(world: World) -> None:
    await world.create("visits")
    await world.write("visits", ("ada", "1"))
    assert "not searched" not in (await world.run("verify", "visits", "--key", "nobody")).stdout
    (topic,) = await world.metadata.agents.list_topics()
    await world.metadata.agents.delete_topic(topic.topic_id)
    await until(lambda: made_again(world, "visits"))
    looked = await world.run("verify", "visits", "--key", "ada")
    assert looked.exit_code == 0 and "in no object: 1 key of visits" in looked.stdout
    assert "not searched: 1 object with records of deleted topics" in looked.stdout
    assert len((await world.json("verify", "visits", "--key", "ada"))["unsearched"]) == 1


async def made_again(world: World, topic: str, configs: Mapping[str, str] = MappingProxyType({})) -> bool:
    try:
        await world.create(topic, configs)
    except KafkaError:  # the agent has not heard of the deletion
        return False
    return True


async def test_ctrl_c_before_the_request_is_stored_says_what_may_be_there_and_the_next_run_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create("users", COMPACTED)
    await world.write("users", ("ada", "1"))

    delete = KeyLog.delete

    async def interrupted(*words: Any, **more: Any) -> None:
        await delete(*words, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(KeyLog, "delete", interrupted)
        stopped = await world.erase("users", "--key", "ada", "--yes")
    assert stopped.exit_code == 130 and "Tombstones of some keys may be written." in stopped.stderr
    assert "siltstone erase status --metadata" in stopped.stderr and "run the command again" in stopped.stderr
    assert await world.metadata.erasures.erasures() == []
    again = await world.erase("users", "--key", "ada", "--yes")
    assert again.exit_code == 0 and "0 to be written first, 1 there already" in again.stderr
    assert await world.metadata.erasures.erasure_marks(1) == {0: [KeyMark(hash_of(b"ada"), 1, tombstone=True)]}
    assert await world.values("users") == [(0, "ada", "1"), (1, "ada", None)]


def test_a_wait_without_postgres_says_that_the_erasure_stays() -> None:
    nobody = "postgresql://siltstone@127.0.0.1:1/siltstone"
    given = SystemOptions(data=None, metadata_url=nobody, object_store_url="", settings=Settings())
    with pytest.raises(StillErasingError) as ended:
        wait_for_the_end(Urls(metadata=nobody, object_store=""), given, 7, timeout_ms=None, as_json=False)
    assert "cannot connect to Postgres" in ended.value.message and "The erasure stays" in ended.value.message
    assert "`siltstone erase status 7" in ended.value.remedy
