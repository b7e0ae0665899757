"""The name of a user in the words of the command line."""

from __future__ import annotations

from siltstone.cli.options.usage import WrongUsageError

_TYPE = "User:"


def check_is_no_principal(name: str) -> None:
    """`User:bob` would be the principal `User:User:bob`. Raises WrongUsageError."""
    if name.startswith(_TYPE):
        raise WrongUsageError(
            f"{name!r} is a principal, not the name of a user",
            remedy=f"the name is {name.removeprefix(_TYPE) or 'NAME'!r}; {_TYPE} belongs to ACLs and super.users",
        )
