"""The nodes of the plan as functions, as somebody would write them without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .work import BEST, FANOUT, WEIGHT

if TYPE_CHECKING:
    from .clients import Reads

    User = tuple[int, str | None]
    Scored = tuple[int, float]


async def viewer(reads: Reads, user_id: int) -> User:
    """The user who asks."""
    return user_id, (await reads.hgetall(f"user:{user_id}")).get("country")


async def users(reads: Reads, name: str, viewer: User) -> list[User]:
    """Those in one of the viewer's lists."""
    ids = [int(each) for each in await reads.lrange(f"{name}:{viewer[0]}", 0, FANOUT - 1)]
    hashes = await reads.hgetall_many([f"user:{each}" for each in ids])
    return [(each, fields.get("country")) for each, fields in zip(ids, hashes, strict=True)]


async def media(reads: Reads, of: list[User]) -> list[int]:
    """Their media."""
    lists = await reads.lrange_many([f"media:{each}" for each, _ in of], 0, FANOUT - 1)
    return [int(each) for listed in lists for each in listed]


def score(ids: list[int]) -> list[Scored]:
    """With what they are ranked by."""
    return [(each, each * WEIGHT) for each in ids]


def ranked(follows: list[Scored], recommended: list[Scored]) -> list[dict[str, Any]]:
    """Merged, sorted and cut."""
    merged = sorted(follows + recommended, key=lambda each: -each[1])
    return [{"id": medium, "fields": {"final_score": value}} for medium, value in merged[:BEST]]
