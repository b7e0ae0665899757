"""The judge of denials and of what got through. Pure; times are those of the run.

It knows every state of the ACLs in the metadata, with the time when it began, and which states are *settled*: a change
that was answered without error holds everywhere from the moment of its answer, and so does every change before it. A
request that was sent at one time and carried out by another is ruled by all states from the settled one at the first
time to the last one at the second. If they agree, there was one right answer; if they do not, either was.

It reads Kafka's rules anew, in a few lines, and uses nothing of the agents' matcher.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from security.acls.values import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType

_IMPLY_DESCRIBE = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)


@dataclass(frozen=True, slots=True)
class Question:
    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str


def permits(acls: Iterable[Acl], question: Question) -> bool:
    is_allowed = False
    for acl in acls:
        if not _fits(acl, question):
            continue
        is_named = acl.operation in (Operation.ALL, question.operation)
        if acl.permission is Permission.DENY and is_named:
            return False
        is_implied = question.operation is Operation.DESCRIBE and acl.operation in _IMPLY_DESCRIBE
        if acl.permission is Permission.ALLOW and (is_named or is_implied):
            is_allowed = True
    return is_allowed


def _fits(acl: Acl, question: Question) -> bool:
    if acl.resource_type is not question.resource_type or acl.principal != question.principal:
        return False
    if acl.host not in (WILDCARD, question.host):
        return False
    if acl.pattern_type is PatternType.PREFIXED:
        return question.name.startswith(acl.resource_name)
    return acl.resource_name in (WILDCARD, question.name)


class Rulings:
    def __init__(self) -> None:
        self._acls: list[frozenset[Acl]] = [frozenset()]
        """The states, one after the other."""
        self._began_ms: list[float] = [0.0]
        self._calls: list[tuple[float, Hashable, int]] = []
        """When a call was carried out, what it asked for, and the state after it."""
        self._settled_ms: list[float] = [0.0]
        self._settled: list[int] = [0]
        """The state that is settled since, and never an earlier one."""

    def carried_out(self, now_ms: float, asked: Hashable, acls: Iterable[Acl]) -> None:
        """The metadata carried out a call, and hold these ACLs since."""
        state = frozenset(acls)
        if state != self._acls[-1]:
            self._acls.append(state)
            self._began_ms.append(now_ms)
        self._calls.append((now_ms, asked, len(self._acls) - 1))

    def answered(self, asked: Hashable, sent_ms: float, now_ms: float) -> bool:
        """A request was answered without error. False: nobody carried it out meanwhile."""
        # One of the same kind, sent before and given up, may have come late: the first of them is certainly settled.
        for at_ms, what, state in self._calls:
            if what == asked and sent_ms <= at_ms <= now_ms:
                self._settled_ms.append(now_ms)
                self._settled.append(max(state, self._settled[-1]))
                return True
        return False

    def ruling(self, question: Question, sent_ms: float, until_ms: float) -> bool | None:
        """Whether the client may, about something asked at `sent_ms` and done by `until_ms`; None: that changed."""
        first = self._settled[bisect_right(self._settled_ms, sent_ms) - 1]
        last = bisect_right(self._began_ms, until_ms) - 1
        rulings = {permits(acls, question) for acls in self._acls[first : max(first, last) + 1]}
        return rulings.pop() if len(rulings) == 1 else None
