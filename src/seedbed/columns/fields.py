"""Which fields the values of columns have, and the fields that templates and expressions name and no value has.

Columns declare types, and structured ones a JSON Schema. Where these leave open what a value is, any field may exist: a
problem is reported only if the template fails in every row that gets there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import polars as pl
import pyarrow as pa
from jinja2 import nodes

from ..errors import ConfigError, Permanent
from ..graph import nearest
from ..store.schema import declared_type
from .templates import Template, syntax_tree

if TYPE_CHECKING:
    from .base import Column
    from .templates import Condition


@attrs.frozen
class Reference:
    """A value that is taken from another column of the same row; a dot reaches into a structured value."""

    column: str

    @property
    def root(self) -> str:
        """The column that it requires."""
        return self.column.partition(".")[0]

    def of_row(self, name: str, values: Mapping[str, Any]) -> Any:
        """The value in a row, for the column `name`; null if a part of the path is null."""
        value = values[self.root]
        for field in self.column.split(".")[1:]:
            if value is None:
                return None
            if not isinstance(value, Mapping) or field not in value:
                raise Permanent(f"column {name!r} refers to {self.column!r}, but {self.root!r} has no field {field!r}")
            value = value[field]
        return value

    def look_up(self, name: str, frame: pl.DataFrame) -> pl.Series:
        """The values in a frame, for the column `name`."""
        series = frame[self.root]
        for field in self.column.split(".")[1:]:
            if series.dtype == pl.Null:
                return series
            if not isinstance(series.dtype, pl.Struct):
                raise Permanent(f"column {name!r} refers to {self.column!r}, but {series.name!r} is not structured")
            known = [each.name for each in series.dtype.fields]
            if field not in known:
                raise Permanent(f"column {name!r} refers to {self.column!r}, but {field!r} is not among {known}")
            series = series.struct.field(field)
        return series


def as_reference(value: Any) -> Any:
    """Convert `{"column": "x"}` to a `Reference`; anything else is returned as it is."""
    if isinstance(value, Mapping) and set(value) == {"column"} and isinstance(value["column"], str):
        return Reference(value["column"])
    return value


# What names columns and their fields: templates, expressions and references.
Text: TypeAlias = "Template | Condition | pl.Expr | Reference"

# Parts of a schema that are looked at.
_MAX_PARTS = 10_000


@attrs.frozen(kw_only=True)
class Shape:
    """What is known of a value: the `fields` of an object, the `items` of a list, or the `kind` of a plain value.

    An object with `is_open` may have other fields. If nothing is set it may be anything.
    """

    fields: Mapping[str, Shape] | None = None
    is_open: bool = False
    items: Shape | None = None
    kind: type | None = None


ANY = Shape()
_LIST = Shape(items=ANY)
Shapes = Mapping[str, Shape]


def column_shapes(columns: Iterable[Column]) -> dict[str, Shape]:
    """The shapes of all outputs that are known."""
    shapes: dict[str, Shape] = {}
    for column in columns:
        for name, dtype in column.dtypes().items():
            shapes[name] = type_shape(dtype)
        shapes |= {
            name: schema_shape(schema) for name, schema in column.schemas.items() if shapes.get(name, ANY) == ANY
        }
    return shapes


def type_shape(dtype: object) -> Shape:
    """The shape of the values of a declared type."""
    try:
        return _arrow_shape(declared_type(dtype))
    except ConfigError:
        return ANY


def _arrow_shape(arrow: Any) -> Shape:
    if pa.types.is_struct(arrow):
        return Shape(fields={field.name: _arrow_shape(field.type) for field in arrow})
    if pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        return Shape(items=_arrow_shape(arrow.value_type))
    return next((Shape(kind=kind) for kind, is_kind in _KINDS.items() if is_kind(arrow)), ANY)


_KINDS: dict[type, Any] = {
    bool: pa.types.is_boolean,
    int: pa.types.is_integer,
    float: pa.types.is_floating,
    str: pa.types.is_large_string,
}
_JSON_KINDS = {"string": str, "integer": int, "number": float, "boolean": bool}
_KIND_NAMES = {str: "text", int: "a number", float: "a number", bool: "true or false"}


def schema_shape(schema: Any) -> Shape:
    """The shape of the values that a JSON Schema allows."""
    return _schema_shape(schema, schema, (), itertools.count(1))


def _schema_shape(schema: Any, root: Any, path: tuple[str, ...], parts_so_far: Iterator[int]) -> Shape:
    """The shape of a part; `path` has the references that lead to it."""
    if not isinstance(schema, Mapping) or next(parts_so_far) > _MAX_PARTS or _UNKNOWN & schema.keys():
        return ANY

    def shape(part: Any, *references: str) -> Shape:
        return _schema_shape(part, root, (*path, *references), parts_so_far)

    if "$ref" in schema:
        reference = str(schema["$ref"])
        return ANY if reference in path else shape(resolve_reference(root, reference), reference)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            found = [shape(part) for part in schema[key] if part != {"type": "null"}]
            # What is beside the alternatives is often their type alone, which says nothing of fields.
            beside = shape({name: part for name, part in schema.items() if name != key})
            return _either([*found, *([] if beside == ANY else [beside])])
    kinds = schema.get("type")
    given = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"}
    if given == {"array"}:
        return Shape(items=shape(schema.get("items")) if "prefixItems" not in schema else ANY)
    if given == {"object"} and isinstance(schema.get("properties"), Mapping) and schema["properties"]:
        is_open = schema.get("additionalProperties", False) is not False or "patternProperties" in schema
        return Shape(fields={name: shape(part) for name, part in schema["properties"].items()}, is_open=is_open)
    return Shape(kind=_JSON_KINDS.get(str(given.pop()))) if len(given) == 1 else ANY


# Keywords by which a value may have fields that are not found here.
_UNKNOWN = frozenset({"$dynamicRef", "$recursiveRef", "if", "dependentSchemas", "unevaluatedProperties"})


def _either(shapes: list[Shape]) -> Shape:
    """The shape of values that have one of several shapes: with the fields of all."""
    if all(each.fields is not None for each in shapes):
        names = dict.fromkeys(name for each in shapes for name in each.fields or ())
        fields = {name: [each.fields[name] for each in shapes if each.fields and name in each.fields] for name in names}
        is_open = any(each.is_open for each in shapes)
        return Shape(fields={name: _either(found) for name, found in fields.items()}, is_open=is_open)
    return shapes[0] if shapes.count(shapes[0]) == len(shapes) else ANY


def resolve_reference(root: Any, reference: str) -> Any:
    """The part of a schema that a reference within it names; None for others."""
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root if reference.startswith("#") else None


def field_problems(compiled: Text, shapes: Shapes, *, where: str) -> list[str]:
    """The fields that a template, an expression or a reference names and that no value has, a sentence each."""
    if isinstance(compiled, pl.Expr):
        return [f"{where}: {problem}" for problem in _polars_problems(compiled, shapes)]
    if isinstance(compiled, Reference):
        return [f"{where}: {problem}" for problem in _path_problems(compiled.column, shapes)]
    walker = _Walker(compiled, where, shapes)
    return list(dict.fromkeys(walker.problems))


def not_a_list(condition: Condition, shapes: Shapes) -> str | None:
    """What an expression is if it is known to be no list, in words."""
    walker = _Walker(condition, "", shapes)
    output: Any = syntax_tree(condition).body[0]
    shape = walker.visit(output.nodes[0], {name: shapes[name] for name in condition.requires if name in shapes})
    if shape.fields is not None:
        return "an object"
    return None if shape.kind is None else _KIND_NAMES[shape.kind]


def item_type(dtype: object) -> Any:
    """The type of the items of a declared list type; None if that is not known."""
    try:
        arrow: Any = None if dtype is None else declared_type(dtype)
    except ConfigError:
        return None
    if arrow is None or not (pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow)):
        return None
    return arrow.value_type


def _path_problems(path: str, shapes: Shapes) -> list[str]:
    name, *fields = path.split(".")
    shape = shapes.get(name, ANY)
    for field in fields:
        shape, problem = _field(shape, name, field)
        if problem is not None:
            return [problem]
        name = f"{name}.{field}"
    return []


def _polars_problems(expression: pl.Expr, shapes: Shapes) -> list[str]:
    """Fields of structs that polars does not find, where the types of all columns of the expression are known."""
    known = {name: _polars_type(shapes.get(name, ANY)) for name in expression.meta.root_names()}
    if None in known.values():
        return []
    try:
        pl.LazyFrame(schema=known).select(expression).collect_schema()
    except pl.exceptions.StructFieldNotFoundError as error:
        missing = str(error).partition("\n")[0]
        fields = [name for shape in shapes.values() for name in shape.fields or ()]
        return [f"unknown field {missing!r}{nearest(missing, dict.fromkeys(fields))}"]
    except pl.exceptions.PolarsError:  # of types, which the shapes do not tell exactly
        return []
    return []


def _polars_type(shape: Shape) -> Any:
    """A polars type with these fields; None if they are not known."""
    if shape.fields is not None and not shape.is_open:
        fields = {name: _polars_type(field) for name, field in shape.fields.items()}
        return None if None in fields.values() else pl.Struct(fields)
    if shape.items is not None:
        inner = _polars_type(shape.items)
        return None if inner is None else pl.List(inner)
    return {bool: pl.Boolean(), int: pl.Int64(), float: pl.Float64(), str: pl.String()}.get(shape.kind or object)


def _field(shape: Shape, owner: str, name: str, *, methods: bool = False) -> tuple[Shape, str | None]:
    """The shape of a field of `owner`, and the problem if it has none of that name; with `methods` those count too."""
    if shape.fields is not None:
        if name in shape.fields:
            return shape.fields[name], None
        if shape.is_open or (methods and hasattr(dict, name)):
            return ANY, None
        return ANY, f"unknown field {name!r} of {owner!r}{nearest(name, shape.fields)}"
    if shape.items is not None:
        if methods and hasattr(list, name):
            return ANY, None
        return ANY, f"{owner!r} is a list and has no field {name!r}; use its items, as in {owner}[0].{name} or a loop"
    if shape.kind is None or (methods and hasattr(shape.kind, name)):
        return ANY, None
    return ANY, f"{owner!r} is {_KIND_NAMES[shape.kind]} and has no field {name!r}"


# Filters that return some of the items of a list, and those that return one.
_SAME = frozenset({"list", "sort", "unique", "reverse", "select", "reject", "selectattr", "rejectattr"})
_ONE = frozenset({"first", "last", "min", "max"})
# Filters whose first argument, or the argument `attribute`, is the path to a field of each item.
_BY_FIRST = frozenset({"selectattr", "rejectattr", "groupby"})


class _Walker:
    """Follows a parsed template with the shapes of the names in it, and collects the problems."""

    def __init__(self, compiled: Template | Condition, where: str, shapes: Shapes) -> None:
        self.problems: list[str] = []
        self._where = where
        self._has_lines = isinstance(compiled, Template)
        tree = syntax_tree(compiled)
        # Where a name that is set is read, it may hold the value that it was set to or that of the column.
        assignments: Iterable[Any] = tree.find_all((nodes.Assign, nodes.AssignBlock))
        changed = {name.name for node in assignments for name in _names(node.target)}
        scope = {name: shapes[name] for name in compiled.requires if name in shapes and name not in changed}
        self.visit(tree, scope)

    def visit(self, node: nodes.Node, scope: Shapes) -> Shape:
        """The shape of an expression; of other nodes the parts are visited."""
        match node:
            case nodes.Name(name=name):
                return scope.get(name, ANY)
            case nodes.Const(value=value):
                return Shape(kind=type(value)) if type(value) in _KIND_NAMES else ANY
            case nodes.Getattr(node=owner, attr=name):
                return self._get(node, self.visit(owner, scope), name)
            case nodes.Getitem(node=owner, arg=nodes.Const(value=str(name))):
                return self._get(node, self.visit(owner, scope), name)
            case nodes.Getitem(node=owner, arg=index):
                shape = self.visit(owner, scope)
                self.visit(index, scope)
                return shape if isinstance(index, nodes.Slice) else shape.items or ANY
            case nodes.Filter(node=nodes.Node() as value):
                return self._filter(node, self.visit(value, scope), value, scope)
            case nodes.CondExpr(expr1=one, expr2=nodes.Node() as other):
                self.visit(node.test, scope)
                return _either([self.visit(one, scope), self.visit(other, scope)])
            case nodes.For():
                return self._loop(node, scope)
            case nodes.Macro() | nodes.CallBlock():
                return self._children(node, _without(scope, [each.name for each in node.args]))
            case nodes.With():
                for value in node.values:
                    self.visit(value, scope)
                inner = _without(scope, [each.name for target in node.targets for each in _names(target)])
                for part in node.body:
                    self.visit(part, inner)
                return ANY
        return self._children(node, scope)

    def _children(self, node: nodes.Node, scope: Shapes) -> Shape:
        for child in node.iter_child_nodes():
            self.visit(child, scope)
        return ANY

    def _loop(self, node: nodes.For, scope: Shapes) -> Shape:
        shape = self.visit(node.iter, scope)
        inner = _without(scope, [each.name for each in _names(node.target)])
        # A recursive loop goes over other lists as well.
        if isinstance(node.target, nodes.Name) and shape.items is not None and not node.recursive:
            inner[node.target.name] = shape.items
        inner.pop("loop", None)
        for part in (*([node.test] if node.test is not None else ()), *node.body):
            self.visit(part, inner)
        for part in node.else_:
            self.visit(part, scope)
        return ANY

    def _filter(self, node: nodes.Filter, shape: Shape, value: nodes.Expr, scope: Shapes) -> Shape:
        for argument in (*node.args, *(each.value for each in node.kwargs)):
            self.visit(argument, scope)
        named: dict[str, nodes.Expr] = {str(each.key): each.value for each in node.kwargs}
        path = node.args[0] if node.name in _BY_FIRST and node.args else named.get("attribute")
        found = shape.items
        if isinstance(path, nodes.Const) and isinstance(path.value, str) and found is not None:
            owner = f"{_text(value)}[…]"
            for name in path.value.split("."):
                found = (found.items or ANY) if name.isdigit() else self._get(node, found, name, owner)
                owner = f"{owner}.{name}"
        if shape.items is None or found is None:
            return ANY
        if node.name == "map":
            return Shape(items=found) if path is not None else _LIST
        if node.name in _ONE:
            return shape.items
        return shape if node.name in _SAME else ANY

    def _get(self, node: nodes.Expr, shape: Shape, name: str, owner: str | None = None) -> Shape:
        owner = _text(node.node) if owner is None and isinstance(node, nodes.Getattr | nodes.Getitem) else owner
        found, problem = _field(shape, owner or "", name, methods=True)
        if problem is not None:
            line = f", line {node.lineno}" if self._has_lines else ""
            self.problems.append(f"{self._where}{line}: {problem}")
        return found


def _without(scope: Shapes, names: Iterable[str]) -> dict[str, Shape]:
    removed = set(names)
    return {name: shape for name, shape in scope.items() if name not in removed}


def _names(target: nodes.Node) -> list[nodes.Name]:
    """The names that an assignment or a loop sets."""
    return [target] if isinstance(target, nodes.Name) else list(target.find_all(nodes.Name))


def _text(node: nodes.Expr) -> str:
    """An expression as its user writes it, as far as it is a path."""
    match node:
        case nodes.Name(name=name):
            return name
        case nodes.Getattr(node=owner, attr=name):
            return f"{_text(owner)}.{name}"
        case nodes.Getitem(node=owner, arg=nodes.Const(value=str(name))):
            return f"{_text(owner)}.{name}"
        case nodes.Getitem(node=owner, arg=nodes.Const(value=index)):
            return f"{_text(owner)}[{index}]"
        case nodes.Getitem(node=owner, arg=nodes.Neg(node=nodes.Const(value=index))):
            return f"{_text(owner)}[-{index}]"
        case nodes.Filter(node=nodes.Node() as value, name=name):
            return f"{_text(value)} | {name}"
    return "…"
