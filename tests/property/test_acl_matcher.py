"""The matcher against the rules of Kafka's authorizer, written down plainly, and against that authorizer itself."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.servers.kafka import find_jars
from security.acls.matcher import Matcher, permits
from security.acls.values import ANY_USER, WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from tests.fixtures.acls import ADDRESSES, CLIENTS, NAMES, QUESTIONS, TYPES, drawn
from tests.fixtures.chance import examples

PROGRAM = Path(__file__).parents[1] / "conformance" / "programs" / "Authorizer.java"
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
SETS, CHANGES_PER_SET, QUESTIONS_PER_CHANGE = 60, 12, 40


def fits_name(acl: Acl, name: str) -> bool:
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)


def fits_client(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, ANY_USER) and acl.host in (host, WILDCARD)


def judged(acls: Collection[Acl], principal: str, host: str, asked: Operation, name: str, *, everyone: bool) -> bool:
    """The rules, one after the other, for ACLs about one type of resource."""
    about = [acl for acl in acls if fits_name(acl, name)]
    if not about:
        return everyone
    ours = [acl for acl in about if fits_client(acl, principal, host)]
    if any(acl.permission is Permission.DENY and acl.operation in (asked, Operation.ALL) for acl in ours):
        return False
    enough = {asked, Operation.ALL, *IMPLIED.get(asked, ())}
    return any(acl.permission is Permission.ALLOW and acl.operation in enough for acl in ours)


@st.composite
def acl_sets(draw: st.DrawFn) -> list[Acl]:
    chance = random.Random(draw(st.integers(0, 2**32)))
    return [drawn(chance) for _ in range(draw(st.integers(0, 60)))]


@given(acl_sets(), acl_sets(), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=examples(400))
def test_the_matcher_judges_by_the_rules_after_any_changes(
    added: list[Acl], removed: list[Acl], everyone: bool, seed: int
) -> None:
    chance = random.Random(seed)
    matcher = Matcher(added, allow_everyone=everyone)
    for acl in [*removed, *chance.sample(added, len(added) // 2)]:
        assert matcher.remove(acl) == (acl in added)
        added = [each for each in added if each != acl]
    assert matcher.count == len(set(added))
    for _ in range(30):
        principal, host, name = chance.choice(CLIENTS), chance.choice(ADDRESSES), chance.choice(NAMES)
        kind, asked = chance.choice(TYPES), chance.choice(QUESTIONS)
        about = [acl for acl in added if acl.resource_type is kind]
        allowed = permits(matcher.held(principal, host, kind, name), asked)
        assert allowed == judged(about, principal, host, asked, name, everyone=everyone)
        if matcher.allows_every(principal, host, kind, asked):
            assert all(judged(about, principal, host, asked, each, everyone=everyone) for each in (*NAMES, "z", ""))
        # Kafka asks about a sample name first, so with `everyone` a denial of that name alone may count for all.
        if allowed and not everyone and asked not in IMPLIED:
            assert matcher.allows_any(principal, host, kind, asked)


@given(acl_sets(), acl_sets())
def test_a_matcher_whose_acls_are_all_removed_keeps_nothing(acls: list[Acl], more: list[Acl]) -> None:
    matcher = Matcher([*acls, *more])
    for acl in {*acls, *more}:
        assert matcher.remove(acl)
    assert matcher.is_empty


@pytest.mark.timeout(120)
def test_kafkas_own_authorizer_gives_the_same_answers() -> None:
    jars = find_jars()
    if jars is None or not any(jars.folder.glob("kafka-metadata-*.jar")):
        pytest.skip("Kafka's jars (KAFKA_JARS or KAFKA_HOME) and a JVM are not at hand")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    lines, ours = _questions(random.Random(seed))
    command = [jars.java, "-Xmx512M", "-cp", f"{jars.folder}/*", str(PROGRAM)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2_000:]
    theirs = done.stdout.split()
    asked = [line for line in lines if line[:3] in ("ask", "any")]
    assert len("".join(theirs)) == len(asked) == len("".join(ours))
    wrong = [line for line, a, b in zip(asked, "".join(ours), "".join(theirs), strict=True) if a != b]
    assert wrong == []
    assert 0.1 < "".join(ours).count("1") / len(asked) < 0.9


def _questions(chance: random.Random) -> tuple[list[str], list[str]]:
    """The lines for Kafka, and our answers of each set."""
    lines: list[str] = []
    ours: list[str] = []
    for number in range(SETS):
        everyone = bool(number % 2)
        matcher, present = Matcher(allow_everyone=everyone), set[Acl]()
        lines.append(f"new\t{str(everyone).lower()}")
        answers: list[str] = []
        for _ in range(CHANGES_PER_SET):
            for acl in {drawn(chance) for _ in range(chance.choice((1, 5)))} - present:
                present.add(acl)
                assert matcher.add(acl)
                lines.append(_line("add", acl))
            for acl in chance.sample(sorted(present, key=repr), len(present) // 4):
                present.remove(acl)
                assert matcher.remove(acl)
                lines.append(_line("del", acl))
            answers += [_ask(chance, matcher, lines) for _ in range(QUESTIONS_PER_CHANGE)]
        ours.append("".join(answers))
    return lines, ours


def _ask(chance: random.Random, matcher: Matcher, lines: list[str]) -> str:
    principal, host, name = chance.choice(CLIENTS), chance.choice(ADDRESSES), chance.choice(NAMES)
    kind: ResourceType = chance.choice(TYPES)
    asked = chance.choice(QUESTIONS)
    if chance.random() < 0.3:
        lines.append(f"any\t{principal}\t{host}\t{asked.name}\t{kind.name}")
        return str(int(matcher.allows_any(principal, host, kind, asked)))
    lines.append(f"ask\t{principal}\t{host}\t{asked.name}\t{kind.name}\t{name}")
    return str(int(permits(matcher.held(principal, host, kind, name), asked)))


def _line(do: str, acl: Acl) -> str:
    words = (acl.resource_type.name, acl.pattern_type.name, acl.resource_name, acl.principal, acl.host)
    return "\t".join((do, *words, acl.operation.name, acl.permission.name))
