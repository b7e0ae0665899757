"""Judges what a client may do, by the ACLs. Pure. The rules are those of Kafka's `StandardAuthorizer`.

- A DENY that fits wins over every ALLOW.
- Operation ALL stands for each operation. ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE, and of ALTER_CONFIGS
  implies DESCRIBE_CONFIGS. A DENY implies nothing.
- An ACL fits by its principal or `User:*`, by its host or `*`, and by its name: the literal one, `*`, or a prefix.
- If no ACL fits the resource, whomever it names, the answer is no; or yes with `allow.everyone.if.no.acl.found`.

ACLs stand in tables, one for each principal, host and type of resource: a dict of literal names, and a dict of prefixes
for each length. The value is a number, `held`: bit *n* says that operation *n* is allowed, bit DENIED + *n* that it is
denied. The numbers of all names that fit are joined by "or", and one number answers for every operation, so it is what
callers keep. An ACL comes and goes by one bit, because a set of ACLs holds no ACL twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from security.acls.values import ANY_USER, WILDCARD, Acl, Operation, PatternType, Permission, ResourceType

Held: TypeAlias = int
"""The verdicts of the ACLs that fit a client and a resource, for every operation."""

_DENIED = 16
"""Denials stand this many bits above what is allowed."""
_IMPLIES = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
# Tuples by the operation's number: the hash of an enum's member costs more than all the rest of a judgement.
_SAYS = tuple(1 << each | 1 << Operation.ALL for each in Operation)
"""Any of these bits names the operation."""
_ALLOWS = tuple(_SAYS[each] | sum(1 << implied for implied in _IMPLIES.get(each, ())) for each in Operation)
"""Any of these bits allows it."""
_DENIES = tuple(bits << _DENIED for bits in _SAYS)
EVERYTHING: Final[Held] = 1 << Operation.ALL
_SAMPLE = "hardcode"
"""Kafka's `authorizeByResourceType` begins with the question about a resource of this name."""


def permits(held: Held, operation: Operation) -> bool:
    return bool(held & _ALLOWS[operation]) and not held & _DENIES[operation]


def operations_mask(held: Held, operations: Iterable[Operation]) -> int:
    """Kafka's bit field: bit *n* is set if operation *n* is permitted."""
    return sum(1 << each for each in operations if permits(held, each))


class _Table:
    """The ACLs of one principal and host about resources of one type."""

    __slots__ = ("denials", "literals", "prefixes")

    def __init__(self) -> None:
        self.literals: dict[str, Held] = {}
        self.prefixes: dict[int, dict[str, Held]] = {}
        """By length."""
        self.denials = 0
        """ACLs that deny."""

    def held(self, name: str) -> Held:
        literals = self.literals
        held = literals.get(name, 0) | literals.get(WILDCARD, 0)
        for length, names in self.prefixes.items():
            held |= names.get(name[:length], 0)
        return held

    def names(self, acl: Acl) -> dict[str, Held]:
        """The dict in which the ACL's bit stands."""
        if acl.pattern_type is PatternType.LITERAL:
            return self.literals
        return self.prefixes.setdefault(len(acl.resource_name), {})

    def drop_empty(self, acl: Acl) -> bool:
        """Returns True if nothing is left."""
        length = len(acl.resource_name)
        if acl.pattern_type is PatternType.PREFIXED and not self.prefixes[length]:
            del self.prefixes[length]
        return not self.literals and not self.prefixes


class _Named:
    """The resources of one type that any ACL names, whomever it is about, with the number of ACLs."""

    __slots__ = ("literals", "prefixes")

    def __init__(self) -> None:
        self.literals: Counter[str] = Counter()
        self.prefixes: dict[int, Counter[str]] = {}

    def count(self, acl: Acl, by: int) -> None:
        length = len(acl.resource_name)
        is_literal = acl.pattern_type is PatternType.LITERAL
        names = self.literals if is_literal else self.prefixes.setdefault(length, Counter())
        names[acl.resource_name] += by
        if not names[acl.resource_name]:
            del names[acl.resource_name]
        if not names and not is_literal:
            del self.prefixes[length]

    @property
    def is_empty(self) -> bool:
        return not self.literals and not self.prefixes

    def fits(self, name: str) -> bool:
        if name in self.literals or WILDCARD in self.literals:
            return True
        return any(name[:length] in names for length, names in self.prefixes.items())


_Key: TypeAlias = tuple[str, str]
"""Principal and host."""


class Matcher:
    """A set of ACLs. To build it of 100,000 takes a third of a second: build that many on a thread."""

    def __init__(self, acls: Iterable[Acl] = (), *, allow_everyone: bool = False) -> None:
        """`allow_everyone`: as the setting `allow.everyone.if.no.acl.found`."""
        self._allow_everyone = allow_everyone
        self._tables: Sequence[dict[_Key, _Table]] = [{} for _ in ResourceType]
        """By the number of the type."""
        self._named = [_Named() for _ in ResourceType]
        self.generation = 0
        """Grows with each change: what was answered before may be wrong after it."""
        self.count = 0
        for acl in acls:
            self.add(acl)

    @property
    def is_empty(self) -> bool:
        return not any(self._tables) and all(named.is_empty for named in self._named)

    def add(self, acl: Acl) -> bool:
        """False: it was there."""
        key, bit = _place(acl)
        tables = self._tables[acl.resource_type]
        table = tables.get(key)
        if table is None:
            table = tables[key] = _Table()
        names = table.names(acl)
        before = names.get(acl.resource_name, 0)
        if before & bit:
            return False
        names[acl.resource_name] = before | bit
        table.denials += acl.permission is Permission.DENY
        self._count(acl, 1)
        return True

    def remove(self, acl: Acl) -> bool:
        """False: it was not there."""
        key, bit = _place(acl)
        tables = self._tables[acl.resource_type]
        table = tables.get(key)
        if table is None:
            return False
        names = table.names(acl)
        before = names.get(acl.resource_name, 0)
        was_there = bool(before & bit)
        if was_there:
            names[acl.resource_name] = before & ~bit
            table.denials -= acl.permission is Permission.DENY
            self._count(acl, -1)
        if not names.get(acl.resource_name, 1):
            del names[acl.resource_name]
        if table.drop_empty(acl):
            del tables[key]
        return was_there

    def held(self, principal: str, host: str, resource_type: ResourceType, name: str) -> Held:
        """Ask the answer with `permits`. `host`: as `canonical_host` writes it, here and in each ACL."""
        held = 0
        get = self._tables[resource_type].get
        for who in (principal, ANY_USER):
            for where in (host, WILDCARD):
                table = get((who, where))
                if table is not None:
                    held |= table.held(name)
        if not held and self._allow_everyone and not self._named[resource_type].fits(name):
            return EVERYTHING
        return held

    def allows_every(self, principal: str, host: str, resource_type: ResourceType, operation: Operation) -> bool:
        """True only if each resource of the type, whatever its name, is allowed. May be False although it is so."""
        tables = self._of(principal, host, resource_type)
        held = 0
        for table in tables:
            if table.denials:
                return False
            held |= table.literals.get(WILDCARD, 0)
        if permits(held, operation):
            return True
        return self._allow_everyone and self._named[resource_type].is_empty

    def allows_any(self, principal: str, host: str, resource_type: ResourceType, operation: Operation) -> bool:
        """Whether some resource of the type is allowed: Kafka's `Authorizer.authorizeByResourceType`, which knows no
        implied operations. It looks at all ACLs of the client at worst."""
        if permits(self.held(principal, host, resource_type, _SAMPLE), operation):
            return True
        tables = self._of(principal, host, resource_type)
        says, denies = _SAYS[operation], _DENIES[operation]
        wild = 0
        for table in tables:
            wild |= table.literals.get(WILDCARD, 0)
        if wild & denies:
            return False
        if wild & says:
            return True
        return any(
            not _denied_by_prefix(tables, name, denies)
            for table in tables
            for name, held, literal in _patterns(table)
            if held & says and not (literal and any(each.literals.get(name, 0) & denies for each in tables))
        )

    def _of(self, principal: str, host: str, resource_type: ResourceType) -> Sequence[_Table]:
        tables = self._tables[resource_type]
        keys = {(who, where) for who in (principal, ANY_USER) for where in (host, WILDCARD)}
        return [table for key in keys if (table := tables.get(key)) is not None]

    def _count(self, acl: Acl, by: int) -> None:
        self.generation += 1
        self.count += by
        self._named[acl.resource_type].count(acl, by)


def _place(acl: Acl) -> tuple[_Key, int]:
    bit = 1 << (acl.operation + (_DENIED if acl.permission is Permission.DENY else 0))
    return (acl.principal, acl.host), bit


def _patterns(table: _Table) -> Iterator[tuple[str, Held, bool]]:
    """Name, what is held, and whether the name is literal."""
    for name, held in table.literals.items():
        yield name, held, True
    for names in table.prefixes.values():
        for name, held in names.items():
            yield name, held, False


def _denied_by_prefix(tables: Sequence[_Table], name: str, denies: int) -> bool:
    return any(
        names.get(name[:length], 0) & denies
        for table in tables
        for length, names in table.prefixes.items()
        if length <= len(name)
    )
