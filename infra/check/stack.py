"""The resources that a root module would make, in the form that the policy rules read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from infra.check.terraform import Resource

ACCOUNT_OF_ARN: Final = re.compile(r"arn:[\w-]+:[\w-]*:[\w-]*:(\d{12}):")


@dataclass(frozen=True, slots=True)
class Violation:
    resource: Resource
    message: str
    remedy: str


class Stack:
    """All resources of one root module."""

    def __init__(self, root: str, resources: tuple[Resource, ...]) -> None:
        self.root = root
        self._by_type: dict[str, list[Resource]] = {}
        for resource in resources:
            self._by_type.setdefault(resource.type, []).append(resource)

    @property
    def account(self) -> str:
        """The number of the account. Raises NotKnownYet if nothing tells it."""
        for identity in self.of("data.aws_caller_identity"):
            return str(identity.values["account_id"])
        # of a copy: an ARN that is not known yet is none
        told = (ACCOUNT_OF_ARN.match(str(dict(one.values).get("arn"))) for one in self.all())
        numbers = Counter(found[1] for found in told if found)
        if not numbers:
            raise NotKnownYet("the number of the account")
        return numbers.most_common(1)[0][0]

    def of(self, *types: str) -> list[Resource]:
        return [resource for kind in types for resource in self._by_type.get(kind, [])]

    def all(self) -> Iterator[Resource]:
        for resources in self._by_type.values():
            yield from resources

    def for_bucket(self, kind: str, bucket: Resource) -> list[Resource]:
        """The resources of this type that belong to this bucket."""
        names = {bucket.values.get("id"), bucket.values.get("bucket")}
        return [resource for resource in self.of(kind) if resource.values.get("bucket") in names]


class NotKnownYet(Exception):
    """A rule needs a value that only the apply tells."""


class Planned(dict[str, Any]):
    """The values of a planned resource or a block of it. Asked for one that is not known yet, it raises NotKnownYet."""

    def __init__(self, known: Mapping[str, Any], unknown: frozenset[str], address: str) -> None:
        super().__init__(known)
        self.unknown = unknown
        self._address = address

    def _ask(self, *names: str) -> None:
        for name in names:
            if name in self.unknown:
                raise NotKnownYet(f"{self._address}.{name}")

    def __getitem__(self, name: str) -> Any:
        self._ask(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._ask(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._ask(name)
        return super().get(name, default)

    def values(self) -> Any:
        self._ask(*sorted(self.unknown))
        return super().values()


Rule: TypeAlias = Callable[[Stack], Iterator[Violation]]


def blocks(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The nested blocks of this name; empty if there are no such blocks."""
    found: object = values.get(name) or []
    return cast("list[dict[str, Any]]", [found] if isinstance(found, dict) else found)
