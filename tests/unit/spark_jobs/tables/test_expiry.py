"""The choice of snapshots to expire: worked examples, and what holds for any history."""

from __future__ import annotations

import random
import secrets

import pytest

from spark_jobs.tables.iceberg.upkeep.expiry import MANY, Ref, Taken, enough, expired


def line(*made_ms: int, progress: bool = True) -> list[Taken]:
    """Snapshots 0, 1, ... one after the other."""
    return [
        Taken(id=number, parent=number - 1 if number else None, made_ms=each, carries_progress=progress)
        for number, each in enumerate(made_ms)
    ]


def branch(head: int, *, main: bool = True, keep_ms: int | None = None, keep_last: int | None = None) -> Ref:
    return Ref(snapshot_id=head, is_branch=True, is_main=main, keep_ms=keep_ms, keep_last=keep_last)


def tag(snapshot_id: int) -> Ref:
    return Ref(snapshot_id=snapshot_id, is_branch=False, is_main=False)


def test_a_snapshot_goes_when_it_was_replaced_long_enough_ago() -> None:
    history = line(0, 100, 200, 300)
    # at 320, who keeps 150 ms may have opened the table at 170, when snapshot 1 was the current one
    assert expired(history, [branch(3)], 320, 150, 1) == (0,)
    # a reader that began at 199 still holds snapshot 1 at 349, and none does at 350
    assert expired(history, [branch(3)], 349, 150, 1) == (0,)
    assert expired(history, [branch(3)], 350, 150, 1) == (0, 1)
    # the newest stays, however old it is
    assert expired(history, [branch(3)], 10**12, 150, 1) == (0, 1, 2)
    assert expired([], [], 10**12, 150, 1) == ()


def test_the_last_ones_and_those_of_refs_stay() -> None:
    history = line(0, 100, 200, 300, 400)
    assert expired(history, [branch(4)], 10**6, 0, 3) == (0, 1)
    assert expired(history, [branch(4), tag(1)], 10**6, 0, 1) == (0, 2, 3)
    # a branch's own values go before those of the table
    assert expired(history, [branch(4), branch(2, main=False, keep_last=2)], 10**6, 0, 1) == (0, 3)
    assert expired(history, [branch(4, keep_ms=10**7)], 10**6, 0, 1) == ()


def test_all_down_to_the_newest_with_progress_stay_on_the_main_branch() -> None:
    history = [*line(0, 100), *(Taken(id=n, parent=n - 1, made_ms=n * 100, carries_progress=False) for n in (2, 3, 4))]
    assert expired(history, [branch(4)], 10**6, 0, 1) == (0,)
    # a history in which none carries any is like all others
    assert expired(line(0, 100, 200, progress=False), [branch(2)], 10**6, 0, 1) == (0, 1)


def test_snapshots_of_no_branch_go_by_their_own_age() -> None:
    # given a rollback from 2 to 1, and then 3
    history = [*line(0, 100, 200), Taken(id=3, parent=1, made_ms=300, carries_progress=True)]
    assert expired(history, [branch(3)], 300, 100, 1) == (0,)
    assert expired(history, [branch(3)], 301, 100, 1) == (0, 2)


@pytest.mark.parametrize(
    ("count", "of", "worth"), [(0, 10, False), (1, 10, True), (1, 11, False), (13, 134, False), (14, 134, True)]
)
def test_few_snapshots_wait_until_they_are_worth_a_commit(count: int, of: int, worth: bool) -> None:
    assert enough(count, of) == worth
    assert enough(MANY, 10**6)


def test_whatever_was_current_in_time_stays_and_the_rest_goes() -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    for _ in range(2_000):
        history, refs = any_history(chance)
        now_ms, keep_ms, keep_last = history[-1].made_ms + chance.randrange(50), chance.randrange(120), 1
        gone = set(expired(history, refs, now_ms, keep_ms, keep_last))
        told = f"seed {seed}: {history} {refs} at {now_ms}, keeping {keep_ms}"
        by_id = {each.id: each for each in history}
        assert not gone & {each.snapshot_id for each in refs}, told
        justified = {each.snapshot_id for each in refs}
        on_a_branch: set[int] = set()
        for ref in refs:
            after, each = None, by_id.get(ref.snapshot_id)
            sought = ref.is_main
            while ref.is_branch and each is not None:
                on_a_branch.add(each.id)
                # current at some moment after now_ms - keep_ms, or on the way to the progress
                if after is None or after.made_ms > now_ms - keep_ms or (sought and carries_below(by_id, each)):
                    assert each.id not in gone, told
                    justified.add(each.id)
                sought = sought and not each.carries_progress
                after, each = each, by_id.get(-1 if each.parent is None else each.parent)
        justified |= {each.id for each in history if each.id not in on_a_branch and each.made_ms >= now_ms - keep_ms}
        assert gone == set(by_id) - justified, told


def carries_below(by_id: dict[int, Taken], each: Taken | None) -> bool:
    while each is not None:
        if each.carries_progress:
            return True
        each = by_id.get(-1 if each.parent is None else each.parent)
    return False


def any_history(chance: random.Random) -> tuple[list[Taken], list[Ref]]:
    """Commits on several branches, with rollbacks, tags, and parents that were expired before."""
    history: list[Taken] = []
    heads: dict[str, int] = {}
    made_ms, tags = 0, list[Ref]()
    for number in range(chance.randrange(1, 20)):
        made_ms += chance.randrange(1, 30)
        name = chance.choice(["main", "main", "side"])
        parent = heads.get(name, heads.get("main"))
        progress = chance.random() < 0.5
        history.append(Taken(id=number, parent=parent, made_ms=made_ms, carries_progress=progress))
        heads[name] = number
        if chance.random() < 0.1:
            tags.append(tag(number))
        if chance.random() < 0.1:
            heads[name] = chance.randrange(number + 1)
    named = {each.snapshot_id for each in tags} | set(heads.values())
    history = [each for each in history if chance.random() < 0.9 or each.id in named or each is history[-1]]
    return history, [*tags, *(branch(head, main=name == "main") for name, head in heads.items())]
