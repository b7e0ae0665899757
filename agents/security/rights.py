"""The rights of one client: the questions that handlers ask.

With `acl.mode=off` every client has UNLIMITED. A handler takes the rights once for each request; one that waits for
long takes them again when it goes on. Rights are another object after each change of ACLs, so "allowed by these rights"
may be kept beside the object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from agents.security.audit import Audit, Question
from agents.yielding import chunks_with_yields
from security.acls.matcher import EVERYTHING, Held, Matcher, operations_mask, permits
from security.acls.operations import CLUSTER_OPERATIONS
from security.acls.values import CLUSTER_NAME, Operation, ResourceType

KEPT_MAX = 100
"""Judgements kept for a connection and a type of resource. Kept ones cost a fifth of new ones."""
_CHANGES = tuple(
    each in (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS) for each in Operation
)


class Rights:
    """Those of a client that may do everything, and tell nobody."""

    is_unlimited = True

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """The audit log tells of a denial, and of an allowed change."""
        return True

    def sees(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """As `allows`, where a denial is no refusal: what is not allowed is left out of a list."""
        return True

    def holds(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """As `allows`, where another right may be enough: to be followed by the question for that one, which tells of
        a denial. So it is answered by the ACLs in mode shadow too."""
        return True

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Some resource of the type, whichever."""
        return True

    def allows_every(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Each resource of the type, for certain. False: ask for each."""
        return True

    def mask(self, operations: Sequence[Operation], resource_type: ResourceType, name: str) -> int:
        """Kafka's bit field of the operations that are allowed."""
        return sum(1 << each for each in operations)

    def allows_cluster(self, operation: Operation) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def sees_cluster(self, operation: Operation) -> bool:
        return self.sees(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def holds_cluster(self, operation: Operation) -> bool:
        return self.holds(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def cluster_mask(self) -> int:
        """0 for a client that may not describe the cluster, as in Kafka."""
        if not self.sees_cluster(Operation.DESCRIBE):
            return 0
        return self.mask(CLUSTER_OPERATIONS, ResourceType.CLUSTER, CLUSTER_NAME)

    def allowed_names(self, operation: Operation, resource_type: ResourceType, names: Iterable[str]) -> set[str]:
        """The audit log tells of those that are not."""
        return {name for name in names if self.allows(operation, resource_type, name)}


async def allowed_in_turns(
    rights: Rights, operation: Operation, resource_type: ResourceType, names: Collection[str]
) -> set[str]:
    """As `allowed_names`, with turns of the event loop between many names."""
    allowed = set[str]()
    async for some in chunks_with_yields(list(names)):
        allowed |= rights.allowed_names(operation, resource_type, some)
    return allowed


UNLIMITED: Final = Rights()


class JudgedRights(Rights):
    """Those of a client about which the ACLs say something. `everything`: a super user."""

    is_unlimited = False

    def __init__(
        self, matcher: Matcher, audit: Audit, principal: str, host: str, *, everything: bool, shadow: bool
    ) -> None:
        self._matcher = matcher
        self._generation = matcher.generation
        self._audit = audit
        self._principal = principal
        self._host = host
        self._everything = everything
        self._shadow = shadow
        self._kept: Sequence[dict[str, Held]] = [{} for _ in ResourceType]

    @property
    def kept_count(self) -> int:
        return sum(map(len, self._kept))

    def by(self, matcher: Matcher, principal: str) -> bool:
        """These are still the rights of the principal."""
        return self._matcher is matcher and self._generation == matcher.generation and self._principal == principal

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        held = self._kept[resource_type].get(name)
        if held is None:
            held = self._judge(resource_type, name)
        if permits(held, operation):
            if _CHANGES[operation] or self._audit.tells_everything:
                self._tell_allowed(operation, resource_type, name)
            return True
        return self._refuse(operation, resource_type, name)

    def sees(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return self._shadow or self.holds(operation, resource_type, name)

    def holds(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return permits(self._held(resource_type, name), operation)

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        if self._everything or self._matcher.allows_any(self._principal, self._host, resource_type, operation):
            return True
        return self._refuse(operation, resource_type, "")

    def allows_every(self, operation: Operation, resource_type: ResourceType) -> bool:
        if self._everything or self._shadow:
            return True
        return self._matcher.allows_every(self._principal, self._host, resource_type, operation)

    def mask(self, operations: Sequence[Operation], resource_type: ResourceType, name: str) -> int:
        if self._shadow:
            return super().mask(operations, resource_type, name)
        return operations_mask(self._held(resource_type, name), operations)

    def _held(self, resource_type: ResourceType, name: str) -> Held:
        held = self._kept[resource_type].get(name)
        # A list of all topics must not push out what the client's own requests need.
        return self._look_up(resource_type, name) if held is None else held

    def _judge(self, resource_type: ResourceType, name: str) -> Held:
        kept = self._kept[resource_type]
        if len(kept) >= KEPT_MAX:
            del kept[next(iter(kept))]
        held = kept[name] = self._look_up(resource_type, name)
        return held

    def _look_up(self, resource_type: ResourceType, name: str) -> Held:
        return EVERYTHING if self._everything else self._matcher.held(self._principal, self._host, resource_type, name)

    def _refuse(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        question = Question(self._principal, self._host, operation, resource_type, name)
        if self._shadow:
            self._audit.would_be_denied(question)
        else:
            self._audit.denied(question)
        return self._shadow

    def _tell_allowed(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        question = Question(self._principal, self._host, operation, resource_type, name)
        if _CHANGES[operation]:
            self._audit.changes(question)
        else:
            self._audit.allowed(question)
