"""Statistics of columns: counts over all rows, and distributions and diversity over an even sample of them.

Pure. Frames are taken in one after the other, so memory does not grow with the number of rows. Fields of structs that
are numbers, such as the scores of a judge, have statistics of their own, under a dotted name.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import polars as pl

from .values import is_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Distributions are those of at most this number of rows, evenly spaced; diversity is that of the first of them.
SAMPLE = 20_000
_DIVERSITY_SAMPLE = 2_000
_BINS = 24
_TOP = 12
# Values are compared and shown up to this length.
_LONGEST = 2_000
_SHOWN = 120
# Hashes of distinct values that are stored before every second one is left out.
_HASHES = 1 << 18
# Correlations of more fields than this are not computed.
_MAX_CORRELATED = 40

Bin = tuple[float, float, int]
"""Lower and upper bound, and how many values of the sample are between them."""


@attrs.frozen(kw_only=True)
class Diversity:
    """How much texts differ, measured on a sample of them."""

    texts: int
    """The number of texts in the sample."""
    distinct_1: float
    """The share of distinct words among all words."""
    distinct_2: float
    """The share of distinct pairs of adjacent words among all such pairs."""
    near_duplicates: float
    """The share of texts that have eight of ten word triples in common with another text."""
    compression: float
    """How many times smaller zlib makes all texts together; much more than 3 means repetitive texts."""


@attrs.frozen(kw_only=True)
class FieldStatistics:
    """One column, or one number within a column of structs."""

    name: str
    """The name; `column.field` for a field of a struct."""
    dtype: str
    """The type."""
    kind: str
    """`number`, `boolean`, `time`, `text`, `list`, `document`, `binary` or `null`."""
    rows: int
    nulls: int
    distinct: int
    """Distinct values; an estimate beyond 262,144 of them."""
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    median: float | None = None
    """Of numbers: the values; of times: seconds since 1970; of all others: the length in characters, items or bytes."""
    histogram: tuple[Bin, ...] = ()
    top: tuple[tuple[str, int], ...] = ()
    """The most frequent values in the sample, if some value occurs more than once."""
    diversity: Diversity | None = None

    @property
    def duplicates(self) -> int:
        """How many values occur in an earlier row too."""
        return max(0, self.rows - self.nulls - self.distinct)

    @property
    def tokens(self) -> float | None:
        """The mean number of tokens of a text, at four characters each."""
        return self.mean / 4 if self.kind == "text" and self.mean is not None else None


@attrs.frozen(kw_only=True)
class Statistics:
    """The columns of a dataset; `sampled` rows of `rows` gave the distributions."""

    rows: int
    sampled: int
    fields: tuple[FieldStatistics, ...]
    correlations: tuple[tuple[str, str, float], ...] = ()
    """Pearson's correlation of two fields that are numbers, for each pair that has one."""

    def frame(self) -> pl.DataFrame:
        """One row for each field."""
        bins = pl.List(pl.Struct({"low": pl.Float64, "high": pl.Float64, "count": pl.Int64}))
        counts = pl.List(pl.Struct({"value": pl.String, "count": pl.Int64}))
        numbers = ("mean", "std", "median", "minimum", "maximum", "tokens")
        schema: dict[str, Any] = {"column": pl.String, "type": pl.String, "kind": pl.String}
        schema |= dict.fromkeys(("rows", "nulls", "distinct", "duplicates"), pl.Int64)
        schema |= dict.fromkeys(numbers, pl.Float64)
        schema |= dict.fromkeys((field.name for field in attrs.fields(Diversity)[1:]), pl.Float64)
        schema |= {"histogram": bins, "top": counts}
        rows = []
        for each in self.fields:
            row: dict[str, Any] = {name: getattr(each, name, None) for name in schema}
            row |= {"column": each.name, "type": each.dtype}
            if each.diversity is not None:
                row |= {name: value for name, value in attrs.asdict(each.diversity).items() if name in schema}
            row["histogram"] = [dict(zip(("low", "high", "count"), found, strict=True)) for found in each.histogram]
            row["top"] = [dict(zip(("value", "count"), found, strict=True)) for found in each.top]
            rows.append(row)
        return pl.DataFrame(rows, schema=schema)


def statistics(frames: Iterable[pl.DataFrame], *, rows: int, sample: int = SAMPLE) -> Statistics:
    """Compute the statistics of frames that have the same columns and, in total, `rows` rows."""
    step = max(1, math.ceil(rows / sample))
    fields: dict[str, _Field] = {}
    at = sampled = 0
    for frame in frames:
        offset = -at % step
        for name, series in _fields(frame):
            if name not in fields:
                fields[name] = _Field(name, series.dtype)
            fields[name].add(series, series.gather_every(step, offset) if offset < series.len() else series.clear())
        sampled += len(range(offset, frame.height, step))
        at += frame.height
    numbers = {name: field.sampled() for name, field in fields.items() if field.kind in ("number", "boolean")}
    return Statistics(
        rows=at,
        sampled=sampled,
        fields=tuple(field.result() for field in fields.values()),
        correlations=tuple(_correlations(numbers)) if len(numbers) <= _MAX_CORRELATED else (),
    )


def _fields(frame: pl.DataFrame) -> Iterator[tuple[str, pl.Series]]:
    """Each column, and the fields of structs that are numbers."""
    for name in frame.columns:
        series = frame[name]
        yield name, series
        if isinstance(series.dtype, pl.Struct):
            yield from _numbers_within(name, series)


def _numbers_within(name: str, series: pl.Series) -> Iterator[tuple[str, pl.Series]]:
    for field in series.struct.fields:
        inner = series.struct.field(field)
        if isinstance(inner.dtype, pl.Struct):
            yield from _numbers_within(f"{name}.{field}", inner)
        elif inner.dtype.is_numeric() or inner.dtype == pl.Boolean:
            yield f"{name}.{field}", inner


def kind_of(dtype: Any) -> str:
    """What kind of statistics a column of this type has."""
    if is_json(dtype) or isinstance(dtype, pl.Struct):
        return "document"
    kinds = {pl.String: "text", pl.Boolean: "boolean", pl.Binary: "binary", pl.Null: "null"}
    if dtype in kinds:
        return kinds[dtype]
    if dtype.is_numeric():
        return "number"
    if dtype.is_temporal():
        return "time"
    return "list" if isinstance(dtype, pl.List | pl.Array) else "text"


class _Field:
    """What is known of one field so far."""

    def __init__(self, name: str, dtype: Any) -> None:
        self.name, self.dtype, self.kind = name, dtype, kind_of(dtype)
        self._rows = self._nulls = 0
        self._sum = self._squares = 0.0
        self._count = 0
        self._minimum, self._maximum = math.inf, -math.inf
        self._hashes = np.empty(0, np.uint64)
        self._new: list[np.ndarray[Any, Any]] = []  # hashes that are not in it yet: merging takes a sort
        self._pending = 0
        self._mask = np.uint64(0)  # only hashes without these bits are stored
        self._sample: list[pl.Series] = []

    def add(self, series: pl.Series, sample: pl.Series) -> None:
        self._rows += series.len()
        self._nulls += series.null_count()
        series = _comparable(series, self.kind)
        hashes = series.drop_nulls().hash().to_numpy()
        self._new.append(hashes[(hashes & self._mask) == 0])
        self._pending += self._new[-1].size
        if self._pending > _HASHES:
            self._merge()
        measured = _measured(series, self.kind)
        measured = measured[np.isfinite(measured)]
        if measured.size:
            self._count += measured.size
            self._sum += float(measured.sum())
            self._squares += float(np.square(measured).sum())
            self._minimum = min(self._minimum, float(measured.min()))
            self._maximum = max(self._maximum, float(measured.max()))
        self._sample.append(_comparable(sample, self.kind))

    def _merge(self) -> None:
        self._hashes = np.unique(np.concatenate([self._hashes, *self._new]))
        self._new, self._pending = [], 0
        while self._hashes.size > _HASHES:
            self._mask = self._mask << np.uint64(1) | np.uint64(1)
            self._hashes = self._hashes[(self._hashes & self._mask) == 0]

    def sampled(self) -> np.ndarray[Any, Any]:
        return np.concatenate([_measured(each, self.kind) for each in self._sample]) if self._sample else np.empty(0)

    def result(self) -> FieldStatistics:
        self._merge()
        measured = self.sampled()
        measured = measured[np.isfinite(measured)]
        mean = self._sum / self._count if self._count else None
        spread = None if mean is None else max(0.0, self._squares / self._count - mean * mean)
        values = pl.concat(self._sample).drop_nulls() if self._sample else pl.Series([], dtype=pl.String)
        is_text = self.kind == "text" and values.dtype == pl.String
        # A sum of squares may overflow, and what is not finite is no JSON.
        return FieldStatistics(
            name=self.name,
            dtype="json" if is_json(self.dtype) else str(self.dtype),
            kind=self.kind,
            rows=self._rows,
            nulls=self._nulls,
            distinct=self._hashes.size * (int(self._mask) + 1),
            minimum=self._minimum if self._count else None,
            maximum=self._maximum if self._count else None,
            mean=_finite(mean),
            std=_finite(math.sqrt(spread)) if spread is not None else None,
            median=float(np.median(measured)) if measured.size else None,
            histogram=histogram(measured, whole=self.kind != "time"),
            top=_top(values, self.kind),
            diversity=diversity(values.head(_DIVERSITY_SAMPLE).to_list()) if is_text else None,
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _comparable(series: pl.Series, kind: str) -> pl.Series:
    """The values in a form that can be hashed, measured and counted, none of them huge."""
    if is_json(series.dtype):
        return pl.Series(series.name, series.to_list(), dtype=pl.String)
    if kind == "text" and series.dtype != pl.String:
        return series.cast(pl.String, strict=False)
    return series


def _measured(series: pl.Series, kind: str) -> np.ndarray[Any, Any]:
    """What is measured of the values: numbers themselves, else lengths; NaN for a null."""
    match kind:
        case "time":
            is_span = series.dtype in (pl.Duration, pl.Time)
            measured = series.to_physical().cast(pl.Float64) / (1e9 if series.dtype == pl.Time else 1e6)
            series = measured if is_span else series.cast(pl.Datetime("us"), strict=False).dt.epoch("ms") / 1000
        case "text":
            series = series.str.len_chars()
        case "binary":
            series = series.bin.size()
        case "list":
            series = series.list.len() if isinstance(series.dtype, pl.List) else series.arr.len()
        case "document":
            if isinstance(series.dtype, pl.Struct):
                series = series.struct.json_encode()
            series = series.str.len_chars()
    return series.cast(pl.Float64, strict=False).fill_null(math.nan).to_numpy()


def histogram(values: np.ndarray[Any, Any], *, whole: bool = True) -> tuple[Bin, ...]:
    """Count values in bins of one width; `whole` bounds for whole numbers."""
    if not values.size:
        return ()
    low, high = float(values.min()), float(values.max())
    if low == high or not math.isfinite(high - low):
        return ((low, high, int(values.size)),)
    with np.errstate(all="ignore"):  # of the smallest and largest floats
        edges = np.linspace(low, high, _BINS + 1)
    if whole and bool((values == np.floor(values)).all()) and high - low < 2**52:
        step = max(1, math.ceil((high - low + 1) / _BINS))
        edges = np.arange(low, high + step + 1, step)
        edges = edges[: int(np.searchsorted(edges, high, side="right")) + 1]
    # Not numpy's own histogram, which loses values at the ends of the largest floats.
    counts = np.bincount(np.searchsorted(edges[1:-1], values, side="right"), minlength=edges.size - 1)
    return tuple(
        (float(start), float(stop), int(count)) for (start, stop), count in zip(pairwise(edges), counts, strict=True)
    )


def _top(values: pl.Series, kind: str) -> tuple[tuple[str, int], ...]:
    if kind in ("list", "document", "binary", "null") or not values.len():
        return ()
    counted = values.value_counts(sort=True).head(_TOP)
    rows = counted.rows()
    if rows[0][1] < 2:
        return ()
    return tuple((str(value).lower() if kind == "boolean" else str(value)[:_SHOWN], count) for value, count in rows)


def _correlations(numbers: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[str, str, float]]:
    for (name, one), (other_name, other) in combinations(numbers.items(), 2):
        if one.size != other.size:  # a field that only some frames have
            continue
        known = np.isfinite(one) & np.isfinite(other)
        if known.sum() < 3:
            continue
        a, b = one[known], other[known]
        with np.errstate(all="ignore"):
            scale = a.std() * b.std()
            found = float(((a - a.mean()) * (b - b.mean())).mean() / scale) if scale else math.nan
        if math.isfinite(found):
            yield name, other_name, max(-1.0, min(1.0, found))


def diversity(texts: Sequence[str]) -> Diversity | None:
    """Measure how much texts differ; None for fewer than two."""
    if len(texts) < 2:
        return None
    cut = [text[:_LONGEST] for text in texts]
    words = [text.lower().split() for text in cut]
    joined = "\n".join(cut).encode("utf-8", "replace")
    return Diversity(
        texts=len(texts),
        distinct_1=_distinct_share(words, 1),
        distinct_2=_distinct_share(words, 2),
        near_duplicates=_near_duplicates(words),
        compression=len(joined) / max(1, len(zlib.compress(joined, 6))),
    )


def _distinct_share(words: Sequence[Sequence[str]], length: int) -> float:
    grams = [gram for each in words for gram in zip(*(each[start:] for start in range(length)), strict=False)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _near_duplicates(words: Sequence[Sequence[str]], *, share: float = 0.8) -> float:
    """The share of texts whose triples of words are nearly those of another text.

    Texts are compared if they have the least of all triples, by one of several orders, in common.
    """
    shingles = [
        frozenset(zip(each, each[1:], each[2:], strict=False)) or frozenset([(" ".join(each), "", "")])
        for each in words
    ]
    numbers: dict[tuple[str, ...], int] = {}
    salts = np.random.default_rng(0).integers(1, 2**63, size=12, dtype=np.uint64) | np.uint64(1)
    buckets: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for at, found in enumerate(shingles):
        ids = np.array([numbers.setdefault(each, len(numbers)) for each in found], np.uint64)
        mixed = (ids[:, None] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) * salts
        for order, least in enumerate((mixed ^ (mixed >> np.uint64(29))).min(axis=0).tolist()):
            buckets[order, least].append(at)
    alike = set[int]()
    for members in buckets.values():
        # Each with the next: enough to find one that is nearly the same, and linear where all are.
        for one, other in pairwise(members):
            if {one, other} <= alike:
                continue
            a, b = shingles[one], shingles[other]
            if len(a & b) >= share * len(a | b):
                alike |= {one, other}
    return len(alike) / len(words)
