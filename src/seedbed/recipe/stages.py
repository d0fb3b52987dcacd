"""Stages of a recipe: where each takes its rows from, and every problem that can be found before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import attrs

from .. import checks
from ..columns.spec import ColumnSpec, ProcessorSpec
from ..columns.templates import Condition, compile_condition
from ..errors import ConfigError
from ..graph import find_cycles, nearest
from ..store.files import is_stage_name
from .acceptance import RowRules

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from ..columns.base import Column

# Columns that the engine fills. The number of a row, in stages that others take rows from; the number of the row that
# a row was made from, or a list of them; and which of the rows made from that row it is.
ROW, PARENT, K = "_row", "_parent", "_k"
RESERVED = (ROW, PARENT, K)
# The column that holds the item of `each`, unless the stage names another.
ITEM = "item"


def _columns(value: Iterable[ColumnSpec] | ColumnSpec) -> tuple[ColumnSpec, ...]:
    return (value,) if isinstance(value, ColumnSpec) else tuple(value)


@checks.field_check
def _stage_name(_: object, __: object, value: Any) -> None:
    if value != "" and not (isinstance(value, str) and is_stage_name(value)):
        raise ConfigError(f"the name of a stage is up to 64 letters, digits and _, a letter first, not {value!r}")


@checks.field_check
def _each(_: object, __: object, value: Any) -> None:
    if not isinstance(value, str) and not (checks.is_whole(value) and value >= 1):
        raise ConfigError(
            f"each must be a number of rows, 1 or more, or an expression for a list such as '{{{{ questions }}}}', "
            f"not {value!r}"
        )
    if isinstance(value, str):
        compile_condition(value, where="each")


def _group(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    known = [field.name for field in attrs.fields(Group)]
    if unknown := [name for name in value if name not in known]:
        raise ConfigError(f"group has no field {unknown[0]!r}{nearest(str(unknown[0]), known)}")
    return Group(**value)


@checks.field_check
def _is_group(_: object, __: object, value: Any) -> None:
    if not isinstance(value, Group):
        raise ConfigError(f"group must be a mapping with 'by' and maybe 'size' and 'remainder', not {value!r}")


@attrs.frozen(kw_only=True)
class Group:
    """Several rows of another stage become one: those with the same values in some columns."""

    by: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names)
    """The columns whose values the rows of a group have in common; without any, rows are grouped in their order."""
    size: int | None = attrs.field(default=None, validator=checks.optional(checks.whole(1)))
    """Rows in a group; by default all rows with the same values, once all are there."""
    remainder: str = attrs.field(default="keep", validator=checks.one_of("keep", "drop"))
    """What becomes of a group that is not full when all rows are there: `keep` it or `drop` it."""


@attrs.frozen(kw_only=True)
class Stage(RowRules):
    """Columns with a source of rows: a number of rows, or the rows of another stage."""

    name: str = attrs.field(kw_only=False, validator=_stage_name)
    """Its name: a folder of the dataset directory, and a name in templates."""
    columns: tuple[ColumnSpec, ...] = attrs.field(default=(), converter=_columns)
    """Its columns, in any order. They may require columns of the stages that its rows come from."""
    rows: int | None = attrs.field(default=None, validator=checks.optional(checks.whole(0)))
    """How many rows it has, if they come from no other stage; `-n` overrides it."""
    from_: str | None = attrs.field(default=None, validator=checks.optional(checks.name))
    """The stage that its rows come from."""
    each: Annotated[int | str | None, "a number of rows, or an expression for a list"] = attrs.field(
        default=None, validator=checks.optional(_each)
    )
    """With `from`: the rows made from each row of that stage, either so many or one for each item of a list."""
    item: str | None = attrs.field(default=None, validator=checks.optional(checks.name))
    """The column with the item of the list, by default `item`."""
    group: Annotated[Group | None, "`by`, `size` and `remainder`"] = attrs.field(
        default=None, converter=_group, validator=checks.optional(_is_group)
    )
    """With `from`: one row for each group of rows of that stage, whose rows are a list in a column of its name."""
    processors: tuple[ProcessorSpec, ...] = attrs.field(default=(), converter=tuple)
    """Processors of its rows, applied in this order."""

    @property
    def item_column(self) -> str | None:
        """The column that holds the item of `each`, if that is a list."""
        return (self.item or ITEM) if isinstance(self.each, str) else None

    def count(self, values: Mapping[str, Any]) -> tuple[int, Sequence[Any]]:
        """How many rows are made from a row with these values, and their items; raises for what is no list."""
        if not isinstance(self.each, str):
            return self.each or 0, ()
        items = self.condition.evaluate(values)
        if items is None:
            return 0, ()
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            found = repr(items)
            shown = found if len(found) <= 60 else f"{found[:60]}…"
            raise ConfigError(f"each: {self.each!r} is {shown} and not a list")
        items = list(items)
        return len(items), items

    @property
    def how(self) -> str:
        """How its rows are made from those of another stage, in words."""
        if self.group is not None:
            by = f" of one {', '.join(self.group.by)}" if self.group.by else ""
            return f"groups of {self.group.size or 'all'}{by}"
        return f"one for each of {self.each}" if isinstance(self.each, str) else f"{self.each} for each"

    @property
    def condition(self) -> Condition:
        """The compiled expression of `each`, if it is one."""
        return compile_condition(str(self.each), where=f"stage {self.name!r}, each")

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns of the stage that its rows come from that decide which rows it has."""
        if self.group is not None:
            return self.group.by
        return self.condition.requires if isinstance(self.each, str) else ()


def stage_problems(stages: Sequence[Stage], output: str | None, *, invalid: Container[int] = ()) -> list[str]:
    """The problems of the stages themselves, a sentence each that begins with its place.

    Fields of the stages at `invalid` positions were left out, because of problems that are reported already.
    """
    problems: list[str] = []
    names = [stage.name for stage in stages]
    parents = {stage.from_ for stage in stages}
    for at, stage in enumerate(stages):
        place = f"stages[{at}]"
        folded = [name.casefold() for name in names[:at]]
        if not stage.name and at not in invalid:
            problems.append(f"{place}.name: a stage needs a name")
        elif stage.name and stage.name.casefold() in folded:
            problems.append(f"{place}.name: duplicate stage {stage.name!r}")
        if at not in invalid:
            problems += [f"{place}.{problem}" for problem in _source_problems(stage, names)]
        for index, processor in enumerate(stage.processors):
            if problem := _processor_problem(stage, processor, is_parent=stage.name in parents):
                problems.append(f"{place}.processors[{index}]: {processor.label}: {problem}")
    for cycle in find_cycles({stage.name: [stage.from_] for stage in stages if stage.from_ not in (None, stage.name)}):
        path = " → ".join(map(str, reversed(cycle)))
        problems.append(f"stages[{names.index(str(cycle[0]))}].from: circular dependency between stages: {path}")
    if output is not None and output not in names:
        problems.append(f"output: unknown stage {output!r}{nearest(str(output), names)}")
    return problems


def _source_problems(stage: Stage, names: Sequence[str]) -> Iterator[str]:
    if stage.from_ is None:
        for field in ("each", "group"):
            if getattr(stage, field) is not None:
                yield f"{field}: needs 'from', the stage that the rows come from"
    elif stage.from_ == stage.name:
        yield f"from: stage {stage.name!r} cannot take its rows from itself"
    elif stage.from_ not in names:
        yield f"from: unknown stage {stage.from_!r}{nearest(stage.from_, names)}"
    if stage.from_ is not None:
        if stage.rows is not None:
            yield f"rows: the rows come from stage {stage.from_!r}; give either 'rows' or 'from'"
        if stage.each is None and stage.group is None:
            yield (
                "from: needs 'each' (a number of rows for each row, or an expression for a list with an item for each) "
                "or 'group'"
            )
    if stage.each is not None and stage.group is not None:
        yield "group: give either 'each' or 'group'"
    for field in ("max_candidates", "on_exhausted") if stage.from_ is not None else ():
        if getattr(stage, field) != getattr(RowRules(), field):
            yield f"{field}: is for stages with a number of rows; this one has as many as are accepted"
    if stage.item is not None and not isinstance(stage.each, str):
        yield "item: names the column with the item of a list, which needs 'each' with an expression"
    if stage.item in RESERVED:
        yield f"item: {stage.item!r} is a column of seedbed's own"


def _processor_problem(stage: Stage, processor: ProcessorSpec, *, is_parent: bool) -> str | None:
    if processor.stage == "pre_batch" and stage.from_ is not None:
        return (
            "a pre_batch processor is for stages with 'rows': the rows of this one are those of "
            f"{stage.from_!r}; use post_batch"
        )
    if processor.stage == "after_generation" and is_parent:
        return "other stages take the rows of this one before all of them are there; use post_batch"
    return None


@attrs.frozen(kw_only=True)
class Inherited:
    """What a stage gets with its rows: the column that stands for it in the graph, and where its values come from.

    `column` is None for a stage that has nothing from others and gives nothing to others. `owners` has the stage that
    stores the values of each output that this stage does not store.
    """

    column: Column | None = None
    owners: Mapping[str, str] = attrs.field(factory=dict)

    def only(self, used: Iterable[str]) -> Inherited:
        """The same without outputs that are neither stored nor used."""
        wanted = set(used)
        return self._select(lambda name: name not in self.owners or name in wanted)

    def without(self, names: Container[str]) -> Inherited:
        """The same without these outputs."""
        return self._select(lambda name: name not in names)

    def _select(self, is_wanted: Callable[[str], bool]) -> Inherited:
        if self.column is None:
            return self
        outputs = tuple(filter(is_wanted, self.column.outputs))
        if not outputs:
            return Inherited()
        column = attrs.evolve(
            self.column,
            name=outputs[0],
            outputs=outputs,
            dtype={name: dtype for name, dtype in self.column.dtypes().items() if name in outputs},
            schemas={name: schema for name, schema in self.column.schemas.items() if name in outputs},
        )
        return Inherited(column=column, owners={name: owner for name, owner in self.owners.items() if name in outputs})
