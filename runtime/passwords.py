"""Passwords in URLs, which must not be shown, not even in part. Pure.

People write passwords as they are, although a URL wants `/ : @ %` of them as %2F %3A %40 %25. Such a URL is read
wrongly: the password `p@ss` of `user:p@ss/word@host` makes a host `ss`. So no part of it may be quoted as a host.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

UNREADABLE: Final = "an address that cannot be read"
HOW_TO_WRITE: Final = "write postgresql://USER:PASSWORD@HOST:PORT/DB, with / : @ % in a password as %2F %3A %40 %25"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
_USER_INFO: Final = re.compile(r"(://[^/\s:@]*):\S*@")
"""To the last "@" of the word: a password may have one."""
_PARAMETER: Final = re.compile(r"(\b(?:ssl)?password=)[^&\s]+", re.IGNORECASE)


def masked(text: str) -> str:
    """The text with the passwords of all URLs in it replaced by ***."""
    if "://" not in text:
        return text
    # Functions, because `re` imports a module to parse a template, which fails while the interpreter ends.
    text = _USER_INFO.sub(lambda found: f"{found[1]}:***@", text)
    return _PARAMETER.sub(lambda found: f"{found[1]}***", text)


def place_in(url: str, *, port: int | None = None) -> str:
    """Host, port and path of a URL, for a message. UNREADABLE where they may be a part of a password."""
    try:
        parts = urlsplit(url)
        # libpq ends the password at the first "@", others at the last.
        if parts.netloc.count("@") > 1 or "@" in parts.path + parts.query + parts.fragment:
            return UNREADABLE
        known = parts.port or port
        return f"{parts.hostname or 'localhost'}{'' if known is None else f':{known}'}{parts.path}"
    except ValueError:
        return UNREADABLE


def scheme_in(url: str) -> str:
    """The scheme of a URL, for a message. "" if there is none, or where it may be a part of a password: of
    `user:pa://ss@host`, say."""
    found = _SCHEME.match(url)
    return found[0] if found else ""


def holds_password(url: str) -> bool:
    """Whether the URL gives a password, of its own or in a parameter."""
    return masked(url) != url
