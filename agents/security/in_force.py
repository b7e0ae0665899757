"""Notices for the operator about the mode of ACLs, when an agent starts and in `siltstone doctor`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.request_context import ANONYMOUS
from agents.security.authorizer import AclMode


class AuthenticatingListener(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def authenticates(self) -> bool: ...

    def setting_name(self, member: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Notice:
    text: str
    remedy: str = ""
    """Of a warning."""

    @property
    def is_warning(self) -> bool:
        return bool(self.remedy)


def notices_of(
    mode: AclMode, setting: str, super_users: Collection[str], listeners: Sequence[AuthenticatingListener]
) -> Iterator[Notice]:
    """`setting`: the value of `acl.mode` that led to the mode."""
    if mode is AclMode.OFF and setting == "auto":
        return  # nobody expects them
    yield Notice(f"{_WORDS[mode]}, because {_reason(setting, listeners)}")
    if mode is not AclMode.ON:
        return
    if not super_users:
        yield Notice(
            "super.users is empty: nobody can create the first ACL",
            remedy="set super.users to who administers the cluster, such as User:admin",
        )
    strangers = [each for each in listeners if not each.authenticates]
    if strangers:
        names = f"listener{'s' if len(strangers) > 1 else ''} {', '.join(each.name for each in strangers)}"
        protocols, certificates = (
            " and ".join(each.setting_name(member) for each in strangers) for member in ("protocol", "tls.client.auth")
        )
        yield Notice(
            f"clients of {names} are {ANONYMOUS} unless they prove who they are",
            remedy=f"set {protocols} to SASL_SSL, or {certificates} to required; or see that no ACL allows"
            f" {ANONYMOUS} or User:* more than strangers may do",
        )


_WORDS = {
    AclMode.OFF: "ACLs are not enforced",
    AclMode.SHADOW: "ACLs are judged but not enforced",
    AclMode.ON: "ACLs are enforced",
}


def _reason(setting: str, listeners: Sequence[AuthenticatingListener]) -> str:
    if setting != "auto":
        return f"acl.mode={setting}"
    proving = [each.name for each in listeners if each.authenticates]
    verb = "listeners {} authenticate" if len(proving) > 1 else "listener {} authenticates"
    return "acl.mode=auto and " + verb.format(", ".join(proving))
