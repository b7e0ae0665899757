"""An S3 store whose GETs are made by obstore: in threads of its own, in Rust. For `client=obstore` in the URL.

GETs alone: PUTs stay as in `storage/s3/store.py`, because obstore cannot send the CRC-32C that the store checks
(docs/decisions/0021). obstore asks where the client was seen to ask, with the client's credentials
(`storage/s3/direct.py`). So the first GET, and every GET behind a proxy, is the client's.

obstore's errors are texts. Only those with one meaning for a GET are translated here: "try again". For all others the
client makes the same GET, and its answer says what is wrong.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import S3Store as ObstoreS3

from runtime.clock import SystemClock
from runtime.logging import get_logger
from storage.objects import StoreUnavailableError
from storage.s3.direct import Direct, Place
from storage.s3.errors import FIRST_SETTING
from storage.s3.store import CONNECT_TIMEOUT_S, POOL_CONNECTIONS, READ_TIMEOUT_S, REQUEST_TIMEOUT_S, S3Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential

_log = get_logger(__name__)

CREDENTIALS_MS = 360_000
"""The life of obstore's copy of the credentials. obstore asks for new ones 300 s before its end, so each copy serves
for a minute; the client renews a role's credentials 10 to 15 minutes before their end.
"""
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_TRY_AGAIN = {429, 500, 502, 503, 504}
_PAST_THE_END = 416
_NEVER_CONNECTED = "kind: Connect"


class ObstoreGets(S3Store):
    def __init__(
        self, *, bucket: str, prefix: str = "", endpoint: str = "", region: str = "", setting: str = FIRST_SETTING
    ) -> None:
        super().__init__(bucket=bucket, prefix=prefix, endpoint=endpoint, region=region, setting=setting)
        self._reader: tuple[Place, ObstoreS3] | None = None
        self._slots = asyncio.Semaphore(POOL_CONNECTIONS)
        self._said = False

    async def close(self) -> None:
        self._reader = None
        await super().close()

    async def _read(self, whole_key: str, span: tuple[int, int] | None) -> tuple[bytes, bool]:
        direct = self._direct
        if direct is None or direct.place is None:
            return await super()._read(whole_key, span)
        try:
            async with self._slots:
                return await self._read_by_obstore(direct, direct.place, whole_key, span)
        except (BaseError, FileNotFoundError) as error:
            said = str(error)
            found = _STATUS.search(said)
            status = int(found[1]) if found is not None else 0
            if status == _PAST_THE_END:
                return b"", True
            if status in _TRY_AGAIN or (_is_transport(said) and _NEVER_CONNECTED not in said):
                raise StoreUnavailableError(
                    f"no answer to get {whole_key!r} in {self._place}: {_line(said)}"
                ) from error
            answer = await super()._read(whole_key, span)
            if not self._said:
                self._said = True
                _log.warning("obstore cannot read what aioboto3 can", error=_line(said))
            return answer

    async def _read_by_obstore(
        self, direct: Direct, place: Place, whole_key: str, span: tuple[int, int] | None
    ) -> tuple[bytes, bool]:
        if self._reader is None or self._reader[0] != place:
            self._reader = (place, self.make_reader(direct, place))
        reader = self._reader[1]
        if span is None:
            whole = await reader.get_async(whole_key)
            return bytes(await whole.bytes_async()), False
        # obstore itself refuses an answer that is not a range, or another one.
        return bytes(await reader.get_range_async(whole_key, start=span[0], length=span[1])), True

    def make_reader(self, direct: Direct, place: Place) -> ObstoreS3:
        options: ClientConfig = {
            "allow_http": place.origin.startswith("http:"),
            "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
            "read_timeout": f"{READ_TIMEOUT_S}s",
            "timeout": f"{REQUEST_TIMEOUT_S}s",
        }
        if direct.ca_bundle:
            options["root_certificate"] = Path(direct.ca_bundle).read_bytes()
        return ObstoreS3(
            self._bucket,
            endpoint=place.origin,
            region=place.region,
            virtual_hosted_style_request=place.path == "/",
            unsigned_payload=True,
            credential_provider=credential_provider(direct),
            client_options=options,
            # As everywhere: only `Retrying` may repeat a request.
            retry_config={"max_retries": 0},
        )


def credential_provider(direct: Direct) -> Callable[[], Coroutine[Any, Any, S3Credential]]:
    clock = SystemClock()

    async def provide() -> S3Credential:
        frozen = await direct.credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.fromtimestamp((clock.wall_ms() + CREDENTIALS_MS) / 1000, UTC),
        }

    return provide


def _is_transport(said: str) -> bool:
    return "HTTP error:" in said


def _line(said: str) -> str:
    return said.partition("\n")[0]
