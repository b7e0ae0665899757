"""A check of the doctor: one question, its answer, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question with its answer."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def passed(name: str, detail: str) -> Check:
    return Check(name=name, ok=True, detail=detail)


def failed(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, ok=False, detail=detail, remedy=remedy)
