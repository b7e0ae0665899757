"""The S3 client's HTTP session, without the silent second try.

aiohttp sends a request again by itself when a pooled connection breaks before the answer, PUT included. The first
request may have been acted on. Then the second one is answered 412, and a file that we wrote ourselves looks like
somebody else's. Only `storage/wrappers/retrying.py` decides about another try, because it remembers that a PUT was in
doubt.
"""

from __future__ import annotations

from typing import Any, cast

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession

from runtime.errors import BugError

_SWITCH = "_retry_connection"
"""aiohttp's private switch; it has no public one. `tests/integration/faults/test_s3_in_trouble.py` counts the requests
that reach the server."""


class OneTrySession(AIOHTTPSession):
    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        """aiobotocore's factory of sessions, which its stubs leave out."""
        session: aiohttp.ClientSession = await cast("Any", super())._get_session(proxy_url)
        if not hasattr(session, _SWITCH):
            raise BugError(f"aiohttp {aiohttp.__version__} may send a PUT twice, because it no longer has {_SWITCH}")
        setattr(session, _SWITCH, False)
        return session

    async def direct_session(self, url: str) -> aiohttp.ClientSession | None:
        """The session for requests to `url` that the client does not make itself; None where a proxy is between."""
        if cast("Any", self)._proxy_config.proxy_url_for(url) is not None:
            return None
        return await self._get_session(None)

    @property
    def ca_bundle(self) -> str:
        verify = cast("Any", self)._verify
        return verify if isinstance(verify, str) else ""
