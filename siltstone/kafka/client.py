"""A small Kafka client over our own codec, for the CLI and the tests. The base install needs no client library.

The client has one connection and sends one request at a time. That is enough because any agent takes any produce and
serves any fetch, so there is no leader to find. Versions are negotiated once, by ApiVersions 0, which every broker
answers; each request then goes out in the newest version that both sides know.

A connection that is lost during a request raises `ConnectionLostError`: the request may have been carried out. The
client repeats nothing, because only the caller knows whether repeating is safe.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TypeVar, cast

from runtime.errors import BadInputError, Outcome, SiltstoneError, UnavailableError
from siltstone.kafka.addresses import parse_bootstrap, reason_of
from siltstone.kafka.closing import CLOSE_TIMEOUT_MS, close
from siltstone.kafka.security import tls
from siltstone.kafka.security.authenticating import authenticate
from siltstone.kafka.security.remedies import CLOSED, DENIED, HUNG, closed, no_agent
from siltstone.kafka.security.values import CLIENT_SECURITY, ClientSecurity
from wire.api import API_VERSIONS, decode_response, encode_request
from wire.error_codes import ErrorCode
from wire.errors import MalformedFrameError, MalformedMessageError
from wire.messages import (
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    fetch,
    incremental_alter_configs,
    list_offsets,
    metadata,
    produce,
)
from wire.schema import Message, Octets, VersionRange, message_table

Response = TypeVar("Response", bound=Message)

CLIENT_ID = "siltstone"
TIMEOUT_MS = 9_000
"""For the answer to a request that does not wait by itself, so that a hung agent is reported within 10 s."""
CONNECT_TIMEOUT_MS = 4_000
"""Time for a connection, and again for its first answer, for the same reason."""
BOOTSTRAP_TIMEOUT_MS = 2 * CONNECT_TIMEOUT_MS
"""Time for all addresses together, for the same reason. Each gets an equal share of what those before it left."""
STORE_WAIT_MS = 15_000
"""An agent waits this long for an object, and then says so: a fetch is given time for that answer."""
FRAME_BYTES_MAX = 128 << 20
PROOF_SHARE = 0.85
"""The part of the time for which a proof counts, after which the client proves itself again (KIP-368)."""
_ANSWERED: dict[str, tuple[str, int]] = {}
"""The address of each bootstrap list that answered last. It is tried first: a command connects several times, and must
not wait for an agent that hangs each time."""
LATEST = -1
"""The timestamp by which ListOffsets returns the high watermark."""
EARLIEST = -2
"""The timestamp by which ListOffsets returns the log start."""
_TOPIC_RESOURCE = 2
_LAST_VERSION_WITH_NAMES: Mapping[int, int] = {0: 12, 1: 12}
"""By API key, the last version that this client uses. From the next one on Produce and Fetch take only ids of topics
(KIP-516), and this client sends names."""
_OP_SET, _OP_DELETE = 0, 1
CONFIG_SOURCES = {1: "topic", 2: "broker", 3: "default broker", 4: "static broker", 5: "default", 6: "logger"}

_REMEDIES: Mapping[str, str] = {
    "UNKNOWN_TOPIC_OR_PARTITION": "`siltstone topics list` shows the topics",
    "TOPIC_ALREADY_EXISTS": "choose another name, or change the topic with `siltstone topics alter`",
    "INVALID_TOPIC_EXCEPTION": "a topic name has 1 to 249 letters, digits, dots, dashes and underscores",
    "INVALID_PARTITIONS": "ask for a number of partitions within the range",
    "INVALID_CONFIG": "correct the name or the value; `siltstone topics describe` of any topic lists all configs of"
    " topics, `siltstone cluster config get --all` those of the cluster",
    "POLICY_VIOLATION": "records of a compacted topic go by tombstones or `siltstone erase`; while its cleanup.policy"
    " is compact,delete they can be trimmed as well",
    "OFFSET_OUT_OF_RANGE": "ask for the first and last offset with ListOffsets and start from there",
    **DENIED,
}
_REMEDIES_WHEN_ADDING_PARTITIONS: Mapping[str, str] = {
    "INVALID_PARTITIONS": "partitions can be added, never removed: ask for more than the topic has, within the range",
}


class KafkaError(SiltstoneError):
    """An agent answered with an error code.

    Attributes:
        code: the number on the wire.
        name: Kafka's name for it (`UNKNOWN_TOPIC_OR_PARTITION`).

    `remedies`, by name, come before the general ones, because a code can mean different things for different requests.
    """

    def __init__(
        self, code: int, what: str, detail: str | None = None, *, remedies: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        try:
            known: ErrorCode | None = ErrorCode(code)
        except ValueError:  # a code that is newer than our table
            known = None
        self.code = code
        self.name = known.name if known else f"error {code}"
        remedy = (
            remedies.get(self.name)
            or _REMEDIES.get(self.name)
            or ("try again: this error is temporary" if known and known.retriable else "")
        )
        explained = detail or (known.message if known else "this version does not know the error code")
        super().__init__(f"{what}: {self.name}: {explained}", remedy=remedy)


class ConnectionLostError(UnavailableError):
    """The connection broke after a request was sent: it may have been carried out."""

    outcome = Outcome.UNKNOWN


class HungAgentError(ConnectionLostError):
    """The agent took the request and did not answer in time."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} did not answer in time", remedy=HUNG)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """The effective value of a topic config. `source` says where it is set: "topic" for an override, for example."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer of one partition to a fetch. `records` are whole batches; the first may start before the offset."""

    high_watermark: int
    log_start_offset: int
    records: memoryview


@asynccontextmanager
async def connected(
    bootstrap: str,
    *,
    client_id: str = CLIENT_ID,
    timeout_ms: float = TIMEOUT_MS,
    security: ClientSecurity | None = None,
) -> AsyncGenerator[KafkaClient]:
    """A client on the first bootstrap address that answers. Raises what `KafkaClient.connect` raises."""
    client = await KafkaClient.connect(bootstrap, client_id=client_id, timeout_ms=timeout_ms, security=security)
    try:
        yield client
    finally:
        await client.close()


class KafkaClient:
    """One connection to one agent. Every call may raise KafkaError, UnavailableError and ConnectionLostError."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        address: str,
        client_id: str,
        timeout_ms: float,
        security: ClientSecurity,
    ) -> None:
        self._reader, self._writer, self._security = reader, writer, security
        self._prove_again_s = inf
        self.address, self._client_id, self._timeout_ms = address, client_id, timeout_ms
        self._agents_timeout_ms = int(timeout_ms * 0.9)  # its own answer comes before this client gives up
        self._correlation_id = 0
        self._broken = self._is_unanswered = False
        self._one_at_a_time = asyncio.Lock()
        self._served: dict[int, VersionRange] = {API_VERSIONS: VersionRange(0, 0)}

    @classmethod
    async def connect(
        cls,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_ms: float = TIMEOUT_MS,
        security: ClientSecurity | None = None,
    ) -> KafkaClient:
        """Connect to the first address that answers, negotiate versions and log in. No `security`: the command's.

        Raises BadInputError, such as TlsFailedError and LoginError, and UnavailableError."""
        security = CLIENT_SECURITY.get() if security is None else security
        context = tls.context_of(security) if security.has_tls else None
        refusals: dict[str, str] = {}
        is_hung = False
        loop = asyncio.get_running_loop()
        addresses = sorted(parse_bootstrap(bootstrap), key=lambda each: each != _ANSWERED.get(bootstrap))
        given_up_s = loop.time() + BOOTSTRAP_TIMEOUT_MS / 1000
        for index, (host, port) in enumerate(addresses):
            address = f"{host}:{port}"
            begun_s = loop.time()
            share_s = max(0.0, given_up_s - begun_s) / (len(addresses) - index)
            limit_s = min(CONNECT_TIMEOUT_MS / 1000, share_s)
            try:
                async with asyncio.timeout(limit_s):
                    reader, writer = await asyncio.open_connection(host, port, ssl=context)
            except (OSError, TimeoutError) as error:
                if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                    raise tls.failed(address, error, security) from error
                refusals[address] = reason_of(error, limit_s)
                continue  # one address that answers is enough
            client = cls(reader, writer, address=address, client_id=client_id, timeout_ms=timeout_ms, security=security)
            try:
                left_ms = max(1.0, 1000 * (begun_s + share_s - loop.time()))
                await client._negotiate(min(CONNECT_TIMEOUT_MS, timeout_ms, left_ms))
            except ConnectionLostError as error:
                await client.close()
                is_hung = is_hung or isinstance(error, HungAgentError)
                refusals[address] = f"connected, but it {error.message.removeprefix(address).strip()}"
                continue
            except BaseException:
                await client.close()
                raise
            _ANSWERED[bootstrap] = (host, port)
            return client
        raise no_agent(refusals, security, is_hung=is_hung)

    @property
    def is_closed_by_agent(self) -> bool:
        """The agent has closed the connection between two requests: nothing that is sent now reaches it."""
        return self._reader.at_eof()

    async def close(self) -> None:
        if self._broken:
            self._writer.transport.abort()  # a hung agent does not take what is still to be sent: do not wait for it
        await close(self._writer, None if self._is_unanswered else CLOSE_TIMEOUT_MS)

    async def call(self, request: Message, response: type[Response], *, timeout_ms: float | None = None) -> Response:
        """Send one request in the newest version that both sides know, and wait for its answer.

        `timeout_ms` replaces the client's own, for a request that an agent answers only after a wait. The caller checks
        the error codes inside the answer.
        """
        async with self._one_at_a_time:
            await self._prepare()
            return await self._ask(request, response, timeout_ms=timeout_ms)

    async def _ask(self, request: Message, response: type[Response], *, timeout_ms: float | None = None) -> Response:
        table = message_table(type(request))
        version = self._version(table.api_key, table.versions)
        self._correlation_id += 1
        parts = encode_request(table.api_key, version, self._correlation_id, self._client_id, request)
        try:
            async with asyncio.timeout((timeout_ms or self._timeout_ms) / 1000):
                self._writer.writelines(parts)
                await self._writer.drain()
                frame = await self._read_frame()
        except BaseException as error:
            self._broken = True  # a late answer would be mistaken for the answer to the next request
            if isinstance(error, TimeoutError):
                raise HungAgentError(self.address) from error
            # With TLS 1.3 a server judges our certificate after the handshake.
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                raise tls.failed(self.address, error, self._security) from error
            if isinstance(error, (OSError, EOFError)):
                remedy = closed(self._security, is_first=self._correlation_id <= 2)  # after ApiVersions
                raise ConnectionLostError(f"{self.address} {CLOSED}", remedy=remedy) from error
            raise
        correlation_id, answer = decode_response(table.api_key, version, frame)
        if correlation_id != self._correlation_id or not isinstance(answer, response):
            self._broken = True
            raise MalformedMessageError(f"{self.address} answered request {self._correlation_id} with {correlation_id}")
        self._is_unanswered = False
        return answer

    async def send(self, request: Message) -> None:
        """Send one request that has no answer (Produce with acks 0). Its outcome stays unknown."""
        table = message_table(type(request))
        version = self._version(table.api_key, table.versions)
        async with self._one_at_a_time:
            await self._prepare()
            self._is_unanswered = True  # it may still be on its way when this client is closed
            self._correlation_id += 1
            try:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    self._writer.writelines(
                        encode_request(table.api_key, version, self._correlation_id, self._client_id, request)
                    )
                    await self._writer.drain()
            except BaseException as error:
                self._broken = True
                if isinstance(error, (OSError, TimeoutError)):
                    raise ConnectionLostError(f"{self.address} did not accept the request") from error
                raise

    def supports(self, api_key: int) -> bool:
        """Whether the agent advertises this API."""
        return api_key in self._served

    async def metadata(self, topics: Sequence[str] | None = None) -> metadata.MetadataResponse:
        """The brokers and the named topics (None = all). No topic is created. Topics carry their own error codes."""
        wanted = None if topics is None else [metadata.MetadataRequestTopic(name=name) for name in topics]
        request = metadata.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        return await self.call(request, metadata.MetadataResponse)

    async def topic(self, name: str) -> metadata.MetadataResponseTopic:
        """One topic, with its partitions. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        answer = await self.metadata([name])
        for topic in answer.topics:
            _check(topic.error_code, f"topic {name!r}")
            return topic
        raise MalformedMessageError(f"{self.address} answered Metadata without the topic {name!r}")

    async def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic; -1 partitions: the agent's default. Raises KafkaError TOPIC_ALREADY_EXISTS and others."""
        topic = create_topics.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[create_topics.CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
        )
        request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=self._agents_timeout_ms)
        answer = await self.call(request, create_topics.CreateTopicsResponse)
        for result in answer.topics:
            _check(result.error_code, f"create topic {name!r}", result.error_message)

    async def delete_topic(self, name: str) -> None:
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=name)], timeout_ms=self._agents_timeout_ms
        )
        answer = await self.call(request, delete_topics.DeleteTopicsResponse)
        for result in answer.responses:
            _check(result.error_code, f"delete topic {name!r}", result.error_message)

    async def create_partitions(self, name: str, count: int) -> None:
        """Grow a topic to `count` partitions."""
        topic = create_partitions.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=self._agents_timeout_ms)
        answer = await self.call(request, create_partitions.CreatePartitionsResponse)
        for result in answer.results:
            what = f"add partitions to topic {name!r}"
            _check(result.error_code, what, result.error_message, remedies=_REMEDIES_WHEN_ADDING_PARTITIONS)

    async def topic_configs(self, name: str) -> Sequence[ConfigEntry]:
        """Every config of a topic, sorted by name, with the source of its value."""
        resource = describe_configs.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
        )
        answer = await self.call(
            describe_configs.DescribeConfigsRequest(resources=[resource]), describe_configs.DescribeConfigsResponse
        )
        entries: list[ConfigEntry] = []
        for result in answer.results:
            _check(result.error_code, f"configs of topic {name!r}", result.error_message)
            for config in result.configs:
                source = CONFIG_SOURCES.get(config.config_source, "unknown")
                entries.append(ConfigEntry(name=config.name, value=config.value, source=source))
        return sorted(entries, key=lambda entry: entry.name)

    async def alter_configs(self, name: str, *, changes: Mapping[str, str | None]) -> None:
        """Set overrides of a topic; None removes an override. The agent makes all changes or none."""
        configs = [
            incremental_alter_configs.AlterableConfig(
                name=key, config_operation=_OP_DELETE if value is None else _OP_SET, value=value
            )
            for key, value in changes.items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configs=configs
        )
        answer = await self.call(
            incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource]),
            incremental_alter_configs.IncrementalAlterConfigsResponse,
        )
        for result in answer.responses:
            _check(result.error_code, f"alter topic {name!r}", result.error_message)

    async def list_offsets(self, topic: str, partitions: Sequence[int], timestamp: int = LATEST) -> dict[int, int]:
        """By partition, an offset: the high watermark (LATEST), the log start (EARLIEST), or the first record at or
        after a timestamp in ms since the epoch (-1 if there is none)."""
        asked = [list_offsets.ListOffsetsPartition(partition_index=each, timestamp=timestamp) for each in partitions]
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=asked)]
        )
        answer = await self.call(request, list_offsets.ListOffsetsResponse)
        offsets: dict[int, int] = {}
        for answered in answer.topics:
            for partition in answered.partitions:
                _check(partition.error_code, f"offsets of {topic}-{partition.partition_index}")
                offsets[partition.partition_index] = partition.offset
        return offsets

    async def produce(self, topic: str, partition: int, batch: Octets, *, acks: int = -1) -> int:
        """Write one record batch, wait for the commit and return its base offset. `acks` is 1 or -1, never 0."""
        if acks == 0:
            raise BadInputError("acks=0 has no answer to wait for", remedy="use acks 1 or -1")
        data = produce.TopicProduceData(
            name=topic, partition_data=[produce.PartitionProduceData(index=partition, records=batch)]
        )
        request = produce.ProduceRequest(acks=acks, timeout_ms=self._agents_timeout_ms, topic_data=[data])
        answer = await self.call(request, produce.ProduceResponse)
        for answered in answer.responses:
            for result in answered.partition_responses:
                _check(result.error_code, f"produce to {topic}-{partition}", result.error_message)
                return result.base_offset
        raise MalformedMessageError(f"{self.address} answered Produce without {topic}-{partition}")

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 8 << 20,
    ) -> Fetched:
        """Read whole batches that begin at `offset`. Wait at most `max_wait_ms` for `min_bytes`."""
        asked = fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=[fetch.FetchTopic(topic=topic, partitions=[asked])],
        )
        answer = await self.call(
            request, fetch.FetchResponse, timeout_ms=self._timeout_ms + STORE_WAIT_MS + max_wait_ms
        )
        _check(answer.error_code, f"fetch from {topic}-{partition}")
        for answered in answer.responses:
            for data in answered.partitions:
                _check(data.error_code, f"fetch from {topic}-{partition} at offset {offset}")
                return Fetched(
                    high_watermark=data.high_watermark,
                    log_start_offset=data.log_start_offset,
                    records=memoryview(b"") if data.records is None else cast("memoryview", data.records),
                )
        raise MalformedMessageError(f"{self.address} answered Fetch without {topic}-{partition}")

    async def _negotiate(self, timeout_ms: float) -> None:
        request = api_versions.ApiVersionsRequest()
        answer = await self.call(request, api_versions.ApiVersionsResponse, timeout_ms=timeout_ms)
        _check(answer.error_code, f"negotiate versions with {self.address}")
        self._served = {each.api_key: VersionRange(each.min_version, each.max_version) for each in answer.api_keys}
        if self._security.has_sasl:
            await self._log_in(timeout_ms)

    async def _prepare(self) -> None:
        if self._broken:
            raise ConnectionLostError(f"the connection to {self.address} is broken", remedy="connect again")
        if asyncio.get_running_loop().time() > self._prove_again_s:
            await self._log_in(self._timeout_ms)

    async def _log_in(self, timeout_ms: float) -> None:
        try:
            lifetime_ms = await authenticate(partial(self._ask, timeout_ms=timeout_ms), self._security, self.address)
        except SiltstoneError:
            self._broken = True
            raise
        loop = asyncio.get_running_loop()
        self._prove_again_s = loop.time() + PROOF_SHARE * lifetime_ms / 1000 if lifetime_ms else inf

    def _version(self, api_key: int, ours: VersionRange) -> int:
        theirs = self._served.get(api_key)
        if theirs is None:
            raise BadInputError(f"{self.address} does not serve API key {api_key}")
        version = min(ours.high, theirs.high, _LAST_VERSION_WITH_NAMES.get(api_key, ours.high))
        if version < max(ours.low, theirs.low):
            raise BadInputError(
                f"{self.address} serves versions {theirs.low} to {theirs.high} of API key {api_key}, "
                f"this client speaks {ours.low} to {ours.high}"
            )
        return version

    async def _read_frame(self) -> memoryview:
        length = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
        if not 0 < length <= FRAME_BYTES_MAX:
            raise MalformedFrameError(f"{self.address} announced a frame of {length} bytes: is this a Kafka port?")
        return memoryview(await self._reader.readexactly(length))


def _check(
    code: int, what: str, detail: str | None = None, *, remedies: Mapping[str, str] = MappingProxyType({})
) -> None:
    if code:
        raise KafkaError(code, what, detail, remedies=remedies)
