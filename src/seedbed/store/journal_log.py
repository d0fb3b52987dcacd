"""What the records of a journal add up to, and what a change to it writes: no files here.

A record is a row of one table, whatever its kind, and its checksum covers all of it: wherever in a damaged file a
record turns up whole, it says by itself what it is.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import attrs
from attrs.validators import deep_mapping, instance_of

from . import codec
from .records import SPENT, entry_of

if TYPE_CHECKING:
    from collections.abc import Mapping

# The kinds of records: entries of an unfinished row group, entries kept of a finished one, the state of a generator,
# and the totals, of which there is one.
ENTRIES, KEPT, STATE, TOTALS = "entries", "kept", "state", "totals"

Spent: TypeAlias = tuple[tuple[str, str, int, int, int, float], ...]

FORMAT = 1

_SUM_BYTES = 16

_Key = TypeVar("_Key")


@attrs.frozen
class Row:
    """A record: `group` is 0 where there is none; `count` is the number of entries in `data`."""

    identity: int
    kind: str
    group: int
    count: int
    sum: bytes
    data: bytes

    @classmethod
    def make(cls, identity: int, kind: str, group: int, count: int, data: bytes) -> Row:
        """Return a record with its checksum."""
        return cls(identity, kind, group, count, _checksum(identity, kind, group, count, data), data)

    @property
    def whole(self) -> bool:
        """Whether it is what was written."""
        # What a damaged file gives need not even be of the right types.
        fields = attrs.astuple(self, recurse=False)
        return all(map(isinstance, fields, (int, str, int, int, bytes, bytes))) and self.sum == _checksum(
            self.identity, self.kind, self.group, self.count, self.data
        )


@attrs.frozen(kw_only=True)
class Totals:
    """What there must be: of each unfinished row group the first record and how many records and entries there are.

    `kept` is how many records of that kind there are, `states` where each one is. `commits` and `entries` count
    everything that was ever committed.
    """

    commits: int = attrs.field(default=0, validator=instance_of(int))
    entries: int = attrs.field(default=0, validator=instance_of(int))
    spending: Spent = attrs.field(default=(), validator=SPENT)
    groups: Mapping[int, tuple[int, int, int]] = attrs.field(
        factory=dict, validator=deep_mapping(instance_of(int), entry_of(*[instance_of(int)] * 3))
    )
    kept: int = attrs.field(default=0, validator=instance_of(int))
    states: Mapping[str, int] = attrs.field(factory=dict, validator=deep_mapping(instance_of(str), instance_of(int)))
    format: int = attrs.field(default=FORMAT, validator=instance_of(int))

    def encode(self) -> bytes:
        """Return the totals as the data of their record."""
        return codec.encode([(attrs.asdict(self, recurse=False),)])[0]

    @classmethod
    def decode(cls, data: bytes) -> Totals | None:
        """Return the totals of a record; None if it does not hold any, although it is whole."""
        try:
            ((fields,),) = codec.decode(data, trusted=False)
            return cls(**fields)
        except (ValueError, TypeError):
            return None


def decode_state(data: bytes) -> tuple[str, bytes] | None:
    """Return the name and the state of a record; None if it does not hold them, although it is whole."""
    try:
        ((name, state),) = codec.decode(data, trusted=False)
    except (ValueError, TypeError):
        return None
    return (name, state) if isinstance(name, str) and isinstance(state, bytes) else None


@attrs.define(eq=False)
class Unfinished:
    """The records of one unfinished row group, in order, and how many entries they hold."""

    identities: list[int] = attrs.field(factory=list)
    entries: int = 0


@attrs.define(eq=False)
class Log:
    """Where each record is that still counts; changed by `take` while a file is read and by `apply` after a commit."""

    groups: dict[int, Unfinished] = attrs.field(factory=dict)
    kept: dict[int, int] = attrs.field(factory=dict)
    states: dict[str, int] = attrs.field(factory=dict)
    totals: Totals = attrs.field(factory=Totals)
    totals_at: int | None = None
    last: int = 0

    def take(self, row: Row) -> bool:
        """Take in a record, in the order in which they were written; false if it is not whole and does not count."""
        try:
            return row.whole and self._take(row)
        except (TypeError, ValueError):
            return False  # whole, but nothing that we wrote

    def _take(self, row: Row) -> bool:
        self.last = max(self.last, row.identity)
        match row.kind:
            case "entries":
                self._add(row)
            case "kept":
                self.kept[row.group] = row.identity
            case "state":
                found = decode_state(row.data)
                if found is None:
                    return False
                self.states[found[0]] = row.identity
            case "totals":
                totals = Totals.decode(row.data)
                if totals is None:
                    return False
                self.totals, self.totals_at = totals, row.identity
        return True

    def _add(self, row: Row) -> None:
        found = self.groups.setdefault(row.group, Unfinished())
        found.identities.append(row.identity)
        found.entries += row.count

    def counted(self) -> Totals:
        """Return the totals of what is here."""
        return attrs.evolve(
            self.totals,
            groups={
                group: (found.identities[0], len(found.identities), found.entries)
                for group, found in self.groups.items()
            },
            kept=len(self.kept),
            states=dict(self.states),
        )

    @property
    def is_whole(self) -> bool:
        """Whether all is here that the totals say."""
        return self.totals_at is not None and self.counted() == self.totals

    def apply(self, change: Change) -> None:
        """Follow a change that is durable."""
        for group in change.forgotten:
            del self.groups[group]
        for row in change.inserted:
            if row.kind == ENTRIES:
                self._add(row)
        _follow(self.kept, change.kept)
        _follow(self.states, change.states)
        self.totals, self.totals_at = change.totals, change.inserted[-1].identity
        self.last = self.totals_at


class Change:
    """What the next transaction deletes and inserts; the totals come last."""

    def __init__(self, log: Log) -> None:
        self.inserted: list[Row] = []
        self.deleted: list[int] = []
        self.forgotten: list[int] = []
        # Where the new records are; None for those that are deleted and not replaced.
        self.kept: dict[int, int | None] = {}
        self.states: dict[str, int | None] = {}
        self.spending = log.totals.spending
        self.totals = log.totals
        self._log = log

    def append(self, group: int, count: int, data: bytes) -> None:
        """Add entries to a row group."""
        self._insert(ENTRIES, group, count, data)

    def forget(self, group: int) -> None:
        """Delete the entries of a row group."""
        if group in self._log.groups:
            self.deleted += self._log.groups[group].identities
            self.forgotten.append(group)

    def keep(self, group: int, count: int, data: bytes) -> None:
        """Replace what is kept of a row group; nothing if `count` is 0."""
        if group in self._log.kept:
            self.deleted.append(self._log.kept[group])
        if count or group in self._log.kept:
            self.kept[group] = self._insert(KEPT, group, count, data) if count else None

    def set_state(self, name: str, state: bytes | None) -> None:
        """Replace the state of a generator; None forgets it."""
        if name in self._log.states:
            self.deleted.append(self._log.states[name])
        if state is not None or name in self._log.states:
            data = codec.encode([(name, state)])[0]
            self.states[name] = self._insert(STATE, 0, 1, data) if state is not None else None

    def finish(self) -> None:
        """Add the totals of all that will be there."""
        log = self._log
        if log.totals_at is not None:
            self.deleted.append(log.totals_at)
        groups = dict(log.counted().groups)
        for group in self.forgotten:
            del groups[group]
        added = 0
        for row in self.inserted:
            if row.kind == ENTRIES:
                first, records, entries = groups.get(row.group, (row.identity, 0, 0))
                groups[row.group] = (first, records + 1, entries + row.count)
                added += row.count
        states = dict(log.states)
        _follow(states, self.states)
        self.totals = Totals(
            commits=log.totals.commits + 1,
            entries=log.totals.entries + added,
            spending=self.spending,
            groups=groups,
            kept=len(log.kept) + sum((at is not None) - (key in log.kept) for key, at in self.kept.items()),
            states=states,
        )
        self._insert(TOTALS, 0, 0, self.totals.encode())

    def _insert(self, kind: str, group: int, count: int, data: bytes) -> int:
        identity = self._log.last + len(self.inserted) + 1
        self.inserted.append(Row.make(identity, kind, group, count, data))
        return identity


def _follow(places: dict[_Key, int], changed: Mapping[_Key, int | None]) -> None:
    for key, identity in changed.items():
        if identity is None:
            del places[key]
        else:
            places[key] = identity


def _checksum(identity: int, kind: str, group: int, count: int, data: bytes) -> bytes:
    found = hashlib.blake2b(f"seedbed {identity} {kind} {group} {count} ".encode(), digest_size=_SUM_BYTES)
    found.update(data)
    return found.digest()
