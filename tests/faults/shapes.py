"""Recipes of every shape, as plain JSON: the parent and the child of a fault test make the same one of it.

Every value is a function of its row, or of the order in which a stateful generator was called, so that two runs of one
shape give one dataset, whatever fails, is retried or is killed in between. A model cell says in its prompt which cell
it is, and the number of its row is in the dataset as `n`.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl

import seedbed as sb
from seedbed.errors import Permanent, Retryable
from seedbed.runtime import faults

if TYPE_CHECKING:
    from collections.abc import Iterable

SAMPLED = ("category", "gauss", "uuid")
STATEFUL = ("counted", "kept", "seeded")
OTHERS = ("model", "expression", "whole", "function", "rich")
ADDED = 10_000
"""Added to the number of a row by a processor that copies it."""

Ask = Callable[[str, int, str], Any]
"""Answers the prompt of a cell, given with its column and row; the coroutine of a model that is no real one."""


@attrs.frozen(kw_only=True)
class ColumnShape:
    """One column. `bad` are rows whose calls fail: with a status, and how often (None: always)."""

    name: str
    type: str
    requires: tuple[str, ...] = ()
    bad: Mapping[int, tuple[int, int | None]] = attrs.field(factory=dict)
    # Rows that are not made at all.
    skips: bool = False


@attrs.frozen(kw_only=True)
class Shape:
    """A whole recipe and how many rows of it there are."""

    columns: tuple[ColumnShape, ...]
    rows: int = 12
    buffer_size: int = 4
    pre: str | None = None
    """`less` takes rows out before the group's cells are made, `more` adds some, `both` does both."""
    post: bool = False
    after: bool = False
    accept: Mapping[str, Any] = attrs.field(factory=dict)
    """Which rows count: `accept` and the like, as a recipe has them."""

    def to_json(self) -> dict[str, Any]:
        """As it is sent to a child."""
        found: dict[str, Any] = json.loads(json.dumps(attrs.asdict(self)))
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shape:
        """What `to_json` gave."""
        columns = tuple(
            ColumnShape(
                **{
                    **column,
                    "requires": tuple(column["requires"]),
                    "bad": {int(row): tuple(how) for row, how in column["bad"].items()},
                }
            )
            for column in data["columns"]
        )
        return cls(**{**data, "columns": columns})

    @property
    def models(self) -> tuple[ColumnShape, ...]:
        """The columns that are paid for."""
        return tuple(column for column in self.columns if column.type == "model")

    def group_rows(self, group: int) -> list[int]:
        """The numbers of a row group's rows, as its cells see them: by position."""
        stop = 20 * self.rows if self.accept else self.rows
        rows = list(range(group * self.buffer_size, min(stop, (group + 1) * self.buffer_size)))
        if self.pre in ("less", "both"):
            rows = [n for n in rows if not _taken_out(n)]
        if self.pre in ("more", "both"):
            rows = [each for n in rows for each in ([n, n + ADDED] if _copied(n) else [n])]
        return rows

    def lost(self) -> set[int]:
        """The rows that are dropped at last: those with a cell that always fails or fails at once for good."""
        return {
            row
            for column in self.models
            for row, (status, times) in column.bad.items()
            if (times is None or status < 500) and not (column.skips and _skipped(row))
        }

    def written(self) -> list[int]:
        """The numbers of the rows that are in the dataset at last, in order."""
        lost = self.lost()
        groups = range(-(-self.rows // self.buffer_size))
        rows = [n for group in groups for n in self.group_rows(group) if n not in lost]
        return [n for n in rows if not (self.post and _finished_off(n))]


def _taken_out(n: int) -> bool:
    return n % 7 == 3


def _copied(n: int) -> bool:
    return n % 6 == 2


def _skipped(n: int) -> bool:
    return n % 5 == 4


def _finished_off(n: int) -> bool:
    return n % 11 == 6


def cell_of(prompt: str) -> tuple[str, int]:
    """The column and row of the cell that a prompt is of."""
    _, column, row, *_ = prompt.split(maxsplit=3)
    return column, int(row)


def answer_to(prompt: str) -> str:
    """What a model says: something that shows every value of the prompt, or a call of a tool."""
    column, row = cell_of(prompt)
    if prompt.endswith(" books"):
        _, _, _, turn, _ = prompt.split()
        return json.dumps({"tool_calls": [{"name": "book", "arguments": {"cell": f"{column} {row} {turn}"}}]})
    return f"{column}/{row}/{hashlib.sha256(prompt.encode()).hexdigest()[:12]}"


class Trouble:
    """Which calls fail, counted over all runs of a dataset."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._bad = {(column.name, row): how for column in shape.models for row, how in column.bad.items()}
        self.seen: dict[tuple[str, int], int] = {}

    def heal(self) -> None:
        """From now on every call is answered."""
        self._bad.clear()

    def status(self, column: str, row: int) -> int:
        """What becomes of the next call for a cell."""
        self.seen[column, row] = self.seen.get((column, row), 0) + 1
        status, times = self._bad.get((column, row), (200, None))
        return status if times is None or self.seen[column, row] <= times else 200


def raise_status(status: int) -> None:
    """What a client would raise for a status."""
    if status >= 500:
        raise Retryable(f"status {status}")
    if status >= 400:
        raise Permanent(f"status {status}")


# What the columns are filled by. Instances rather than closures: a recipe says where its code is.


def numbers(rows: range) -> list[int]:
    """The column that all others are known by."""
    return list(rows)


class Joined:
    """A cell that is made of others in a thread, with a side effect."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, **values: Any) -> dict[str, Any]:
        text = "+".join(str(value) for value in values.values())
        return {self._name: f"{self._name}:{text}", f"{self._name}_aux": len(text)}


class Rich:
    """A cell of many types, some of which are not easily written down."""

    def __call__(self, n: int) -> dict[str, Any]:
        return {
            "at": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=n * 1_000_003),
            "price": decimal.Decimal(n) / 8,
            "raw": bytes([n % 256, 0, 255]),
            "vector": [float("nan"), float("inf"), -0.0, n / 3],
            "text": f"\u2028 \U0001f331 {n} \x00",
            "nothing": None if n % 2 else [{"deep": n}],
        }


def squared(n: int) -> int:
    """A cell that is made in another process."""
    return n * n


class Whole:
    """A whole column of a row group."""

    def __call__(self, frame: pl.DataFrame) -> list[str]:
        return ["|".join(map(str, row)) for row in frame.iter_rows()]


class Counted:
    """A stateful generator that cannot tell its state: what it was called with, numbered in the order of calls."""

    is_stateful = True

    def __init__(self) -> None:
        self.calls = 0
        self.sum = 0

    def __call__(self, n: int, **_: Any) -> str:
        self.calls += 1
        self.sum += n
        return f"{n}@{self.calls}/{self.sum}"


class Kept(Counted):
    """The same, but it can."""

    def __call__(self, n: int, **values: Any) -> str:
        return super().__call__(n, **values)

    def get_state(self) -> Any:
        """Everything that the next call depends on."""
        return {"calls": self.calls, "sum": self.sum}

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        self.calls, self.sum = state["calls"], state["sum"]


class Seeded:
    """A stateful generator of a column from scratch."""

    is_stateful = True

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, rows: range) -> list[str]:
        self.given += len(rows)
        return [f"seed {n} of {self.given}" for n in rows]


class Asked:
    """A cell that a model fills which is no real one: `ask` answers, in whatever time it is."""

    def __init__(self, name: str, ask: Ask) -> None:
        self._name = name
        self._ask = ask

    async def __call__(self, n: int, **values: Any) -> str:
        said: str = await self._ask(self._name, n, prompt_text(self._name, n, values.values()))
        return said


def prompt_text(column: str, n: int, values: Iterable[Any]) -> str:
    """The prompt of a cell, as `prompt_template` renders it."""
    return " ".join(["cell", column, str(n), *map(str, values)])


def _prompt_template(column: ColumnShape) -> str:
    return " ".join(["cell", column.name, "{{ n }}", *(f"{{{{ {name} }}}}" for name in column.requires)])


BOOKINGS = Path("bookings")
"""Where `book` notes its calls, in the directory that a build works in."""


def book(cell: str) -> str:
    """Books something for a turn of a cell; each call of it counts, whatever becomes of the process."""
    hook = faults.hook or (lambda _: None)
    hook("tool begins")
    with BOOKINGS.open("a", encoding="utf-8") as file:
        file.write(f"{cell}\n")
    hook("tool has run")
    return f"cell {cell} booked"


def talk(name: str, *, idempotent: bool) -> sb.Conversation:
    """A conversation of four turns, half of which call a tool."""
    prompt = f"cell {name} {{{{ n }}}} {{{{ turns | length }}}}"
    tools = [sb.FunctionTool(function=book, idempotent=idempotent)]
    speakers = [
        sb.Speaker(name="asker", model="writer", prompt=prompt),
        sb.Speaker(name="helper", model="writer", prompt=f"{prompt} books", tools=tools),
    ]
    return sb.Conversation(name, speakers=speakers, max_turns=4)


def make_recipe(shape: Shape, *, url: str | None = None, ask: Ask | None = None, run: int = 0) -> sb.Recipe:
    """The recipe; its models are at `url`, or are `ask`. Calls say in a header which `run` they are of."""
    models = {}
    if url is not None:
        models["writer"] = sb.OpenAICompatible(
            base_url=url, model="small", max_parallel_requests=8, headers={"x-run": str(run)}, timeout=30
        )
    return sb.Recipe(
        **shape.accept,
        seed=5,
        models=models,
        columns=[sb.Custom("n", numbers), *(_column(column, ask) for column in shape.columns)],
    )


def _column(column: ColumnShape, ask: Ask | None) -> Any:
    name, requires = column.name, column.requires
    skip = "n % 5 == 4" if column.skips else None
    match column.type:
        case "category":
            return sb.Category(name, values=["tea", "bread", "rain"])
        case "gauss":
            return sb.Gaussian(name, mean=10, std=3)
        case "uuid":
            return sb.UUID(name)
        case "expression":
            return sb.Expression(name, " ".join(f"{{{{ {each} }}}}" for each in ("n", *requires)))
        case "whole":
            return sb.Custom(name, Whole(), requires=["n", *requires])
        case "function":
            return sb.Custom(name, Joined(name), requires=["n", *requires], side_effects=[f"{name}_aux"])
        case "rich":
            return sb.Custom(name, Rich())
        case "process":
            return sb.Custom(name, squared, process=True)
        case "counted":
            return sb.Custom(name, Counted(), requires=["n", *requires])
        case "kept":
            return sb.Custom(name, Kept(), requires=["n", *requires])
        case "seeded":
            return sb.Custom(name, Seeded())
        case "talk" | "booking":
            return talk(name, idempotent=column.type == "talk")
        case "model" if ask is None:
            return sb.LLMText(name, model="writer", prompt=_prompt_template(column), skip_when=skip)
        case "model":
            return sb.Custom(name, Asked(name, ask), requires=["n", *requires], key="writer", skip_when=skip)
    raise AssertionError(column.type)


def make_processors(shape: Shape) -> list[sb.Processor]:
    """What is done to the frames of its row groups, and to the whole."""
    found = []
    if shape.pre is not None:
        found.append(sb.Processor(stage="pre_batch", name="choose", apply=Choose(shape.pre)))
    if shape.post:
        found.append(sb.Processor(stage="post_batch", name="finish", apply=finish))
    if shape.after:
        found.append(sb.Processor(stage="after_generation", name="turn", apply=turn))
    return found


class Choose:
    """A pre-batch processor that takes rows out or adds copies with numbers of their own."""

    def __init__(self, how: str) -> None:
        self._how = how

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        n = pl.col("n")
        if self._how in ("less", "both"):
            frame = frame.filter(n % 7 != 3)
        if self._how in ("more", "both"):
            frame = pl.concat([frame, frame.filter(n % 6 == 2).with_columns(n + ADDED)]).sort(n % ADDED, n)
        return frame


def finish(frame: pl.DataFrame) -> pl.DataFrame:
    """A post-batch processor: a row less here and there, and a column more."""
    return frame.filter(pl.col("n") % 11 != 6).with_columns(done=pl.col("n") * 3)


def turn(frame: pl.LazyFrame) -> pl.LazyFrame:
    """A processor of the whole dataset."""
    return frame.sort("n", descending=True)


RETRIES: dict[str, Any] = {
    "backoff_base": 0.01,
    "backoff_max": 0.02,
    "shutdown_error_rate": 1.0,
    "salvage_error_threshold": 1.0,
}
"""Knobs with which failing cells are tried again soon and end no run."""

PLAIN = Shape(
    rows=30,
    buffer_size=6,
    columns=(
        ColumnShape(name="topic", type="category"),
        ColumnShape(name="a", type="model", requires=("topic",), bad={4: (500, 1), 11: (400, None), 17: (500, None)}),
        ColumnShape(name="b", type="model", requires=("a",)),
        ColumnShape(name="e", type="expression", requires=("a", "b")),
    ),
)
"""Two model columns in a chain, with a cell that is retried, one that fails and one that fails again and again."""
