"""Requests to a bucket as S3 bills them, from the log of `bench.servers.latency_proxy`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from bench.measures.price import Asked

PUT_KINDS = ("PUT", "part", "begin", "complete", "LIST", "POST")
GET_KINDS = ("GET", "HEAD")
FREE_KINDS = ("DELETE",)
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    kind: str
    """One of PUT_KINDS, GET_KINDS, FREE_KINDS."""
    place: str
    """The first part of the key below the store's prefix, such as `l0`; of `catalog` the first two; else OTHER."""
    status: int
    sent_bytes: int
    received_bytes: int


def parse_requests(log: str) -> list[Request]:
    """The whole lines of a log; the last one may be half written."""
    return [_parse(line) for line in log[: log.rfind("\n") + 1].splitlines()]


def asked(requests: Iterable[Request]) -> Asked:
    """The requests that S3 bills: a failed request like a good one."""
    puts = gets = written = read = 0
    for each in requests:
        puts += each.kind in PUT_KINDS
        gets += each.kind in GET_KINDS
        written += each.sent_bytes if each.kind in PUT_KINDS else 0
        read += each.received_bytes if each.kind in GET_KINDS else 0
    return Asked(puts=puts, gets=gets, written_bytes=written, read_bytes=read)


def _parse(line: str) -> Request:
    method, target, status, sent, received = line.split(" ")
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    # A path is /BUCKET/PREFIX/KEY, a listing names PREFIX/KEY in its query.
    segments = parts.path.split("/")[3:]
    if len(segments) == 0 or not segments[0]:
        segments = query.get("prefix", [""])[0].split("/")[1:]
    return Request(
        kind=_kind(method, query),
        place=_place(segments),
        status=int(status),
        sent_bytes=int(sent),
        received_bytes=int(received),
    )


def _kind(method: str, query: dict[str, list[str]]) -> str:
    if method == "PUT":
        return "part" if "partNumber" in query else "PUT"
    if method == "POST":
        if "delete" in query:
            return "DELETE"
        return "begin" if "uploads" in query else "complete" if "uploadId" in query else "POST"
    if method == "GET":
        return "LIST" if {"list-type", "uploads", "prefix"} & query.keys() else "GET"
    return method


def _place(segments: list[str]) -> str:
    match segments:
        case [("l0" | "l1" | "l2" | "jobs") as level, *_]:
            return level
        case ["catalog", part, _, *_]:
            return f"catalog/{part}"
        case ["catalog", *_]:
            return "catalog"
        case _:
            return OTHER
