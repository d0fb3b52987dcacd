"""The part of Redis' protocol (RESP2) that is ours: how commands are written and what their replies must be.

The bytes of replies are parsed by hiredis. Text is UTF-8 both ways; a reply that is not is an error of the one command
that asked for it, because a replaced or escaped character would be other data than the server holds and would fail
much later, where the response is written.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, TypeAlias

import hiredis

from ...errors import EndpointUnavailable, NodeFailed

Reply: TypeAlias = object
"""What hiredis made of a reply; an error is an instance of an exception and is not raised."""

MISSING = object()
"""What the reader gives when it needs more bytes for the next reply."""

PING = b"*1\r\n$4\r\nPING\r\n"

_RANGE_ENDS: dict[tuple[int, int], bytes] = {}
_MOST_RANGE_ENDS = 1024

# Errors that say something about the server, its cluster or our account and not about the key: another server, or
# this one at another time, would answer.
_NOT_HERE = frozenset(
    {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM"}
    | {"MOVED", "ASK", "NOAUTH", "WRONGPASS", "NOPERM", "DENIED"}
)
_CLIENTS = "ERR max number of clients reached"


def new_reader() -> hiredis.Reader:
    """A parser for one connection. `gets` raises ProtocolError for garbage and UnicodeDecodeError for other text."""
    return hiredis.Reader(encoding="utf-8", errors="strict", notEnoughData=MISSING)


def encode_hgetall(key: str) -> bytes:
    """`HGETALL key`."""
    name = key.encode()
    return b"*2\r\n$7\r\nHGETALL\r\n$%d\r\n%b\r\n" % (len(name), name)


def encode_lrange(key: str, start: int, stop: int) -> bytes:
    """`LRANGE key start stop`."""
    name = key.encode()
    return b"*4\r\n$6\r\nLRANGE\r\n$%d\r\n%b\r\n%b" % (len(name), name, _range_end(start, stop))


def _range_end(start: int, stop: int) -> bytes:
    # A plan asks for the same few ranges in all of its requests.
    known = _RANGE_ENDS.get((start, stop))
    if known is None:
        first, last = b"%d" % start, b"%d" % stop
        known = b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(first), first, len(last), last)
        if len(_RANGE_ENDS) < _MOST_RANGE_ENDS:
            _RANGE_ENDS[start, stop] = known
    return known


def read_hash(reply: Reply, asked: str) -> dict[str, str]:
    """The fields that HGETALL gave; none if there is no such key. `asked` names the command where it failed."""
    if type(reply) is list and not len(reply) % 2:
        fields = iter(reply)
        try:
            found = dict(zip(fields, fields, strict=True))
        except TypeError:  # a field that is itself a list
            raise unexpected(reply, asked) from None
        if _texts(reply):
            return found
    raise unexpected(reply, asked)


def read_list(reply: Reply, asked: str) -> list[str]:
    """The elements that LRANGE gave; none if there is no such key."""
    if type(reply) is list and _texts(reply):
        return reply
    raise unexpected(reply, asked)


def read_hashes(replies: list[Any]) -> list[dict[str, str]] | None:
    """What `read_hash` gives for each, all at once; None if one of them is to be refused."""
    if not _text_lists(replies) or any(len(reply) % 2 for reply in replies):
        return None
    return [dict(zip(fields := iter(reply), fields, strict=False)) for reply in replies]


def read_lists(replies: list[Any]) -> list[list[str]] | None:
    """What `read_list` gives for each, all at once; None if one of them is to be refused."""
    return replies if _text_lists(replies) else None


def _text_lists(replies: list[Any]) -> bool:
    # Hundreds a request: one look at all of them is much quicker than one at each.
    return set(map(type, replies)) <= _LISTS and set(map(type, chain.from_iterable(replies))) <= _TEXT


def read_pong(reply: Reply, asked: str) -> None:
    """Nothing, if the reply is that of a PING."""
    if reply != "PONG":
        raise unexpected(reply, asked)


def unexpected(reply: Reply, asked: str) -> EndpointUnavailable | NodeFailed:
    """The error for a reply that does not answer the command."""
    if isinstance(reply, hiredis.ReplyError):
        text = str(reply)
        if text.partition(" ")[0] in _NOT_HERE or text.startswith(_CLIENTS):
            return EndpointUnavailable(f"{asked} was refused: {text}")
        return NodeFailed(f"{asked} failed: {text}")
    if isinstance(reply, UnicodeDecodeError):
        return NodeFailed(f"{asked} found text that is not UTF-8: {reply}")
    return NodeFailed(f"{asked} was answered with {type(reply).__name__} {reply!r:.80}, which does not fit the command")


def _texts(reply: list[object]) -> bool:
    return set(map(type, reply)) <= _TEXT


_TEXT = {str}
_LISTS = {list}
