"""One agent: a stateless broker over an object store and the metadata store.

Start: bind the address (so that the port is known and ours), register under it, load the snapshot with users, ACLs and
quotas, serve. Clients that connect earlier wait in the socket's backlog.

Stop, on SIGTERM: leave the Metadata answers and serve on until the other agents know, send the clients to them
(`draining.py`), begin no new request, seal and commit the buffer, answer, give the lease back. A crash at any point
loses nothing that was acknowledged: see `write/path.py`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from agents.broker import Broker
from agents.draining import Draining, SendingAway
from agents.features import Features
from agents.groups.coordinator import GroupCoordinator
from agents.groups.events import GroupOptions
from agents.groups.expiry import OffsetExpiry
from agents.handlers.config_entries import broker_defaults
from agents.hints import Hints
from agents.listeners.binding import bind_listeners, bind_named, bootstrap_of, told_endpoint
from agents.listeners.listener_tls import TlsOfListeners
from agents.membership import NOTICE_MS, Membership
from agents.producer_ids import ProducerIds
from agents.read.path import ReadPath, the_store_itself
from agents.read.sessions import SESSIONS_MAX, FetchSessions
from agents.security.access import Access
from agents.security.authorizer import Authorizer
from agents.server import Server, bind
from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.fresh_watermarks import FreshWatermarks
from agents.tail.log_index import LogIndex
from agents.tail.own_files import own_markers
from agents.tail.waiters import ParkedReaders
from agents.topics.present import PresentTopics
from agents.topics.topic_cache import TopicCache
from agents.topics.topic_ids import TopicIds
from agents.transactions.room import Transactions
from agents.write.budget import early_per_second, share_of
from agents.write.buffer import SealOptions
from agents.write.path import FileOnItsWay, WriteCallbacks, WritePath
from agents.write.stall import StallLimits, WriteStall
from agents.write.submission import BATCHES_MAX
from agents.write.waits import WaitsReport
from agents.write.walks import RecordWalks
from agents.zone.lines import Dial, dial
from agents.zone.tls import zone_tls_of
from agents.zone.zone import Zone
from metadata.contract.l0_commit import Committed
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.store import MetadataStore
from metadata.transactions.contract import EndTransactions, TransactionsEnded
from runtime.errors import BugError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.addresses import format_address
from runtime.settings.listeners import listeners_of
from runtime.settings.table import Settings
from storage.objects import ObjectStore

_log = get_logger(__name__)

FLUSH_POLL_MS = 5


class Agent:
    """The caller opens, checks (cluster id, conditional create) and closes `store` and `metadata`."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: ObjectStore,
        metadata: MetadataStore,
        runtime: Runtime,
        bind: Callable[[str], socket.socket] = bind,
        dial: Dial = dial,
    ) -> None:
        self._settings = settings
        self._bind = bind
        self._zone = Zone(settings.agent_zone, dial, runtime) if settings.zone_listen else None
        self._store = store
        self._metadata = metadata
        self._runtime = runtime
        self._topic_cache = TopicCache(broker_defaults=broker_defaults(settings))
        self._index = LogIndex()
        self._parked_readers = ParkedReaders()
        self._stall = WriteStall(
            StallLimits(stall_files=settings.l0_stall_files, refuse_files=settings.l0_refuse_files), runtime.metrics
        )
        self._access = Access(settings=settings, metadata=metadata.security, lease=self._lease, runtime=runtime)
        self._follower = Follower(
            metadata=metadata.agents,
            topic_cache=self._topic_cache,
            index=self._index,
            parked_readers=self._parked_readers,
            poll_ms=settings.tail_poll_ms,
            callbacks=FollowerCallbacks(
                on_fatal=self._fail,
                on_live_files=self._live_files_changed,
                # late: the read path is made after the follower, which it needs
                on_deduped=lambda partition_ids: self._reads.forget(partition_ids),
                on_merged=lambda keys: self._reads.drop_files(keys),
                security=self._access.known,
            ),
            runtime=runtime,
        )
        self._reads = ReadPath(
            settings=settings,
            index=self._index,
            store=store,
            metadata=metadata.readers,
            catch_up=self._follower.catch_up,
            runtime=runtime,
            around=self._zone.around if self._zone is not None else the_store_itself,
        )
        self._record_walks = RecordWalks()
        self._draining = Draining()
        self._features = Features()
        self._telling: asyncio.Timeout | None = None
        self._hurry, self._stopping = asyncio.Event(), asyncio.Lock()
        self._hints = Hints(metadata.agents, has_others=self._has_others)
        self._membership: Membership | None = None
        self._write_path: WritePath | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: Transactions | None = None
        self._expiry: asyncio.Task[None] | None = None
        self._server: Server | None = None
        self._tls: TlsOfListeners | None = None
        self.address = ""
        """HOST:PORT as clients of the first listener are told it; known once started."""
        self.addresses: Mapping[str, str] = {}
        """The same of every listener, by name, the first one first."""
        self.ready = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends with an exception when the agent must halt: the metadata store went back in time, or was migrated to a
        schema that this program does not support, or another process has our address."""

    @property
    def authorizer(self) -> Authorizer:
        return self._access.authorizer

    def waits(self) -> WaitsReport | None:
        """The clients that wait for this agent; None while it does not run."""
        return self._write_path.waits() if self._write_path is not None else None

    def reload_certificates(self) -> None:
        """Read the TLS files of all listeners again now; they are also looked at every ten seconds."""
        if self._tls is not None:
            self._tls.reload()

    @property
    def has_certificates(self) -> bool:
        return bool(self._tls)

    async def start(self) -> None:
        """Serve. Raises AddressError, TlsFileError, SettingsError, MetadataUnavailableError, SchemaMismatchError,
        DuplicateAgentError, OlderProgramsAtWorkError.
        """
        settings = self._settings
        bound = ExitStack()
        neighbours: socket.socket | None = None
        try:
            tls = self._tls = TlsOfListeners(listeners_of(settings), self._runtime)
            zone_tls = zone_tls_of(settings, self._runtime, tls.keep)
            listening = bind_listeners(settings, self._bind, bound, tls)
            if settings.zone_listen:
                neighbours = bind_named(self._bind, "zone.listen", settings.zone_listen)
                bound.callback(neighbours.close)
            endpoints = [told_endpoint(listener, each) for listener, each in listening]
            address = AgentAddress(
                host=endpoints[0].host,
                port=endpoints[0].port,
                zone=settings.agent_zone,
                zone_port=neighbours.getsockname()[1] if neighbours is not None else 0,
                endpoints=tuple(sorted(endpoints, key=lambda each: each.listener)),
            )
            identity = await self._metadata.cluster_identity()
            await self._access.check_fleet()
            membership = self._membership = Membership(
                metadata=self._metadata.agents, address=address, runtime=self._runtime
            )
            await membership.join()
            # `join` raises its own errors; from here on only the beats can find a fatal one.
            membership.on_fatal = self._fail
            await self._follower.start()
            await self._access.start()
            self._reads.start()
            if self._zone is not None and neighbours is not None:
                await self._zone.start(
                    neighbours,
                    cluster_id=identity.cluster_id,
                    node_id=membership.node_id,
                    agents=lambda: membership.agents,
                    reads=self._reads,
                    tls=zone_tls,
                )
            names = [each.listener for each in endpoints]
            server = await self._start_parts(identity.cluster_id, names, membership)
            tls.start()
            await server.serve([each for _, each in listening])
        # Also when cancelled: the address and the lease must not stay taken by an agent that does not run.
        except BaseException:
            bound.close()
            await self.stop()
            raise
        self.addresses = {each.listener: format_address(each.host, each.port) for each in endpoints}
        self.address = self.addresses[names[0]]
        self.ready = True
        _log.info(
            "agent ready",
            address=self.address,
            listeners=",".join(f"{name}={told}" for name, told in self.addresses.items()),
            node_id=membership.node_id,
            zone=address.zone,
            pid=os.getpid(),
        )

    async def _start_parts(self, cluster_id: str, listeners: Sequence[str], membership: Membership) -> Server:
        """The parts that write, coordinate and answer."""
        write_path = self._write_path = self._new_write_path(membership)
        groups = self._groups = self._new_groups(membership)
        producer_ids = ProducerIds(self._metadata.agents, self._runtime.clock)
        transactions = self._transactions = self._new_transactions(membership, producer_ids)
        # Before clients come: they ask once what they may use.
        await transactions.start()
        broker = self._broker(cluster_id, listeners, membership, write_path, groups, transactions, producer_ids)
        server = self._server = Server(broker, await self._access.gates(self._features))
        self._access.known.on_users.append(lambda names: server.users_changed())
        write_path.start()
        groups.start()
        self._expiry = asyncio.create_task(self._new_expiry(groups).run_for_ever(), name="offset expiry")
        return server

    async def stop(self) -> None:
        """Send the clients away within `drain.notice.ms`, drain within `drain.timeout.ms`, then end.

        Undoes whatever `start` got done; a second call waits for the first.
        """
        async with self._stopping:
            await self._stop()

    def hurry(self) -> None:
        """`stop` no longer waits for clients to find the other agents."""
        self._hurry.set()
        if self._telling is not None and not self._telling.expired():
            self._telling.reschedule(asyncio.get_running_loop().time())

    async def _stop(self) -> None:
        was_ready, self.ready = self.ready, False
        if was_ready:
            try:
                await self._send_clients_away()
                async with asyncio.timeout(self._settings.drain_timeout_ms / 1000):
                    await self._drain()
            except TimeoutError:
                _log.error("not drained in time; unanswered records were not acknowledged and will be sent again")
            except Exception:  # whatever it is, nothing may stay open
                _log.exception("not drained; unanswered records were not acknowledged and will be sent again")
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        # Groups before the server: parked members are answered while their connections still exist.
        if self._groups is not None:
            await self._groups.close()
        if self._transactions is not None:
            await self._transactions.close()
        if self._server is not None:
            await self._server.close()
        if self._tls is not None:
            await self._tls.close()
        # After the server: nobody can submit any more.
        if self._write_path is not None:
            await self._write_path.close()
        self._record_walks.close()
        await self._follower.stop()
        await self._access.stop()
        # Before the read path, whose pools it serves from.
        if self._zone is not None:
            await self._zone.close()
        await self._reads.close()
        await self._hints.close()
        # Last: the parts above write under this lease, and whoever takes the address next fences it.
        if self._membership is not None:
            await self._membership.leave()
        self._server = self._write_path = self._membership = self._groups = self._transactions = self._expiry = None
        # Ends the wait of a caller that still waits for a failure.
        if not self.failed.done():
            self.failed.cancel()

    async def _send_clients_away(self) -> None:
        if self._membership is None or self._server is None or self._groups is None or self._transactions is None:
            return
        clock, notice_ms = self._runtime.clock, self._settings.drain_notice_ms
        ends_ms = clock.monotonic_ms() + notice_ms
        are_others = await self._tell_others(self._membership, notice_ms)
        try:
            async with asyncio.timeout(self._settings.drain_timeout_ms / 1000):
                # Only now that the others know: a member sent away earlier would find this agent as coordinator again.
                await asyncio.gather(self._groups.drain(), self._transactions.drain())
        except TimeoutError:
            _log.error("groups and transactions not written in time; nobody was told that they were")
        if are_others:
            self._draining.sends_away = True
            self._parked_readers.wake_all()
            sending = SendingAway(
                state=self._draining,
                server=self._server,
                others=self._membership,
                clock=clock,
                notice_ms=ends_ms - clock.monotonic_ms(),
                hurry=self._hurry,
            )
            await sending.run()

    async def _tell_others(self, membership: Membership, notice_ms: float) -> bool:
        """Whether clients can be sent to other agents. A store that hangs is given `drain.timeout.ms`."""
        if self._hurry.is_set():
            return False
        try:
            limit_ms = min(notice_ms, NOTICE_MS) + self._settings.drain_timeout_ms
            async with asyncio.timeout(limit_ms / 1000) as self._telling:
                return await membership.drain(notice_ms)
        except TimeoutError:
            _log.warning("the other agents were not told in time")
            return False
        finally:
            self._telling = None

    async def _drain(self) -> None:
        if self._server is None or self._write_path is None:
            return
        self._server.stop_accepting()
        # A delayed answer slows nobody any more; it would only prolong the drain.
        self._stall.end()
        # Before the write path, which takes in nothing after its drain: first of clients that wait, then of all others.
        while self._server.has_produce_lines:
            await self._runtime.clock.sleep_ms(FLUSH_POLL_MS)
        await self._record_walks.idle()
        await self._write_path.drain()
        # Every promise is kept now; the answers only have to reach the sockets.
        while self._server.produces_waiting:
            await self._runtime.clock.sleep_ms(FLUSH_POLL_MS)

    # ---- parts

    def _new_write_path(self, membership: Membership) -> WritePath:
        settings = self._settings
        return WritePath(
            options=SealOptions(
                linger_ms=settings.produce_linger_ms,
                file_bytes=settings.produce_file_bytes,
                file_batches=BATCHES_MAX,
                early_bytes=settings.produce_early_bytes,
                early_idle_ms=settings.produce_early_idle_ms,
                early_per_second=early_per_second(
                    settings.produce_early_per_second, settings.produce_store_url or settings.object_store_url
                ),
                early_free_bytes=settings.produce_early_free_bytes,
            ),
            uploads_max=settings.produce_uploads_max,
            store=self._store,
            metadata=self._metadata.agents,
            transactions=self._metadata.transactions,
            partitions_max=settings.transaction_partitions_max,
            lease=membership,
            callbacks=WriteCallbacks(on_committed=self._committed, on_bytes_changed=self._produce_bytes_changed),
            runtime=self._runtime,
        )

    def _new_groups(self, membership: Membership) -> GroupCoordinator:
        return GroupCoordinator(
            options=GroupOptions(
                session_timeout_ms_min=self._settings.group_min_session_timeout_ms,
                session_timeout_ms_max=self._settings.group_max_session_timeout_ms,
                initial_rebalance_delay_ms=self._settings.group_initial_rebalance_delay_ms,
                max_size=self._settings.group_max_size,
            ),
            metadata=self._metadata.groups,
            transactions=self._metadata.transactions,
            membership=membership,
            runtime=self._runtime,
        )

    def _new_transactions(self, membership: Membership, producer_ids: ProducerIds) -> Transactions:
        return Transactions(
            settings=self._settings,
            metadata=self._metadata.transactions,
            membership=membership,
            producer_ids=producer_ids,
            features=self._features,
            on_ended=self._ended,
            runtime=self._runtime,
        )

    def _new_expiry(self, groups: GroupCoordinator) -> OffsetExpiry:
        return OffsetExpiry(
            coordinator=groups,
            metadata=self._metadata.groups,
            retention_ms=self._settings.offsets_retention_ms,
            runtime=self._runtime,
        )

    def _broker(
        self,
        cluster_id: str,
        listeners: Sequence[str],
        membership: Membership,
        write_path: WritePath,
        groups: GroupCoordinator,
        transactions: Transactions,
        producer_ids: ProducerIds,
    ) -> Broker:
        present_topics = PresentTopics(self._follower.catch_up, self._runtime.clock)
        return Broker(
            settings=self._settings,
            cluster_id=cluster_id,
            topic_cache=self._topic_cache,
            index=self._index,
            reader=self._reads.reader,
            timestamps=self._reads.timestamps,
            fetch_sessions=FetchSessions(
                slots_max=SESSIONS_MAX,
                draw=self._runtime.ids.jitter,
                on_evicted=self._runtime.metrics.fetch_session_evictions_total.inc,
            ),
            present_topics=present_topics,
            topic_ids=TopicIds(self._topic_cache, present_topics.see),
            write_path=write_path,
            record_walks=self._record_walks,
            stall=self._stall,
            parked_readers=self._parked_readers,
            follower=self._follower,
            fresh=FreshWatermarks(self._metadata.agents),
            membership=membership,
            draining=self._draining,
            listeners=listeners,
            bootstrap=bootstrap_of(self._settings),
            producer_ids=producer_ids,
            groups=groups,
            transactions=transactions.coordinator,
            features=self._features,
            security=self._access.known,
            throttle=self._access.throttle,
            metadata=self._metadata,
            runtime=self._runtime,
            authorizer=self.authorizer,
            freshness=self._access.judge_freshness(membership, self._follower.catch_up),
        )

    # ---- called by the parts

    def _committed(self, file: FileOnItsWay, committed: Committed) -> None:
        """Cache the bytes first, then extend the index: a reader that wakes up finds the bytes in memory."""
        self._reads.hot_cache.put_file(file.key, file.sealed.file.parts, file.sealed_ms)
        self._follower.saw_own(file.as_committed(committed))
        self._hints.soon()

    def _ended(self, request: EndTransactions, ended: TransactionsEnded) -> None:
        """Transactions ended in a file of markers."""
        self._follower.saw_own(own_markers(request, ended))
        self._hints.soon()

    def _has_others(self) -> bool:
        return self._membership is not None and len(self._membership.agents) > 1

    def _lease(self) -> WriterLease:
        if self._membership is None:
            raise BugError("the agent has no lease")
        return self._membership.current

    def _live_files_changed(self, live_files: int) -> None:
        self._stall.files_changed(live_files)
        if self._write_path is not None:
            self._write_path.set_early_share(share_of(live_files, self._settings.l0_stall_files))

    def _produce_bytes_changed(self) -> None:
        if self._server is not None:
            self._server.produce_bytes_changed()

    def _fail(self, error: Exception) -> None:
        self.ready = False
        self.hurry()
        if not self.failed.done():
            self.failed.set_exception(error)
        else:  # it stops already
            _log.error("the agent would have to halt", error=str(error))
