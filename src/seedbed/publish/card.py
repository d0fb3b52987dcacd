"""The card of a dataset: README.md with the metadata that the Hugging Face hub reads, and a description as Croissant.

Both say how the rows came about: recipe, models, seed, counts, cost, drops. They are derived from the directory alone.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from ..columns.documents import MAX_BYTES, read_document, yaml_text
from ..errors import ConfigError
from ..store.files import PRIVATE, read_file, write_file
from ..store.manifest import read as read_manifest
from ..store.parts import open_part
from ..store.values import is_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..observe.report import BuildReport
    from ..store.dataset import Dataset
    from ..store.parts import PartRecord

FOLDER = f"{PRIVATE}/card"
README, CROISSANT = "README.md", "croissant.json"
_RECIPE = f"{PRIVATE}/recipe.yaml"
_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
    (1_000_000_000, "100M<n<1B"),
)
_LONGEST_RECIPE = 60_000
_SHOWN_DROPS = 10


@attrs.frozen(kw_only=True)
class CardOptions:
    """What a card says that the directory does not know."""

    title: str | None = None
    """The title; by default the name of the recipe, or of the directory."""
    description: str | None = None
    """A paragraph below the title."""
    license: str | None = None
    """The licence, as the hub names it: cc-by-4.0, apache-2.0, …"""
    languages: tuple[str, ...] = ()
    """Languages of the texts, as two letters each."""
    tags: tuple[str, ...] = ()
    """Further tags."""


@attrs.frozen(kw_only=True)
class Card:
    """The texts of a card."""

    readme: str
    croissant: str

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Store the card with its dataset, outside of what loaders read."""
        write_file(directory, f"{FOLDER}/{README}", self.readme.encode())
        write_file(directory, f"{FOLDER}/{CROISSANT}", self.croissant.encode())
        return directory / FOLDER / README, directory / FOLDER / CROISSANT


def make_card(
    dataset: Dataset, options: CardOptions | None = None, *, files: Sequence[tuple[str, PartRecord]] | None = None
) -> Card:
    """Describe a dataset. `files` are the names that its parts have where it is published, if they are others."""
    options = options or CardOptions()
    recipe = _recipe(dataset.root)
    title = options.title or str(recipe.data.get("name") or dataset.root.resolve().name)
    if dataset.path != dataset.root and options.title is None:
        title += f": {dataset.stage_name}"
    named = tuple(files) if files is not None else tuple((part.name, part) for part in dataset.parts)
    facts = _Facts(dataset=dataset, report=dataset.report, recipe=recipe, options=options, title=title, files=named)
    return Card(readme=_readme(facts), croissant=json.dumps(_croissant(facts), indent=2, ensure_ascii=False) + "\n")


@attrs.frozen(kw_only=True)
class _Recipe:
    """The stored recipe: its text, and its data as far as it can be read."""

    text: str
    data: Mapping[str, Any]

    def listed(self, name: str) -> list[Mapping[str, Any]]:
        found = self.data.get(name)
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def columns(self) -> list[Mapping[str, Any]]:
        """The columns of all stages, whose names differ."""
        staged = (stage.get("columns") for stage in self.listed("stages"))
        found = (each for columns in staged if isinstance(columns, list) for each in columns if isinstance(each, dict))
        return [*self.listed("columns"), *found]

    def models(self) -> dict[str, Mapping[str, Any]]:
        found = self.data.get("models")
        return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


@attrs.frozen(kw_only=True)
class _Facts:
    dataset: Dataset
    report: BuildReport
    recipe: _Recipe
    options: CardOptions
    title: str
    files: tuple[tuple[str, PartRecord], ...]


def _recipe(directory: Path) -> _Recipe:
    """The stored recipe, which may be missing: datasets of columns written in Python have none."""
    try:
        content = read_file(directory, _RECIPE, limit=MAX_BYTES + 1)
        data = read_document(Path(_RECIPE), content).data
    except (OSError, ConfigError):
        return _Recipe(text="", data={})
    text = content.decode("utf-8", "replace")
    cleaned = _without_secrets(data)
    return _Recipe(text=text if cleaned == data else yaml_text(cleaned), data=cleaned)


def _without_secrets(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recipe without the values of headers and without what a URL has beside host and path: either may be a key."""
    models = data.get("models")
    if not isinstance(models, dict):
        return data
    cleaned = {}
    for name, spec in models.items():
        if isinstance(spec, dict):
            spec = dict(spec)  # noqa: PLW2901 - a copy
            if isinstance(spec.get("headers"), dict):
                spec["headers"] = dict.fromkeys(spec["headers"], "…")
            if isinstance(url := spec.get("base_url"), str) and "://" in url:
                scheme, _, rest = url.partition("?")[0].partition("://")
                host, slash, path = rest.partition("/")
                spec["base_url"] = f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
        cleaned[name] = spec
    return {**data, "models": cleaned}


# README.md


def _readme(facts: _Facts) -> str:
    options, rows = facts.options, facts.dataset.rows
    metadata: dict[str, Any] = {
        "pretty_name": facts.title,
        **({"license": options.license} if options.license else {}),
        **({"language": list(options.languages)} if options.languages else {}),
        "size_categories": [
            next((size for limit, size in _SIZES if rows < limit), "n>1T" if rows > 1e12 else "1B<n<10B")
        ],
        "tags": list(dict.fromkeys(["synthetic", "seedbed", *options.tags])),
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": _pattern([name for name, _ in facts.files])}],
            }
        ],
    }
    sections = [
        f"---\n{yaml_text(metadata)}---\n\n# {_inline(facts.title)}",
        options.description or _summary(facts),
        "## Columns\n\n" + _table(("column", "type", "how it was generated"), _columns(facts)),
        "## Rows\n\n" + _counts(facts),
        *_usage(facts),
        *_drops(facts),
        "## Provenance\n\n" + _provenance(facts),
        *_recipe_section(facts.recipe.text),
    ]
    return "\n\n".join(sections) + "\n"


def _summary(facts: _Facts) -> str:
    rows, columns = facts.dataset.rows, len(facts.dataset.columns)
    return f"A synthetic dataset of {rows:,} rows and {columns} columns, generated with seedbed."


def _pattern(names: Sequence[str]) -> str:
    folder = names[0].rpartition("/")[0] if names else ""
    return f"{folder}/*.parquet" if folder else "*.parquet"


def _columns(facts: _Facts) -> Iterator[tuple[str, str, str]]:
    how = _generated(facts)
    for field in facts.dataset.arrow_schema:
        yield f"`{field.name}`", f"`{_type(field.type)}`", how.get(field.name, "")


def _generated(facts: _Facts) -> dict[str, str]:
    """How each column was generated, in a few words, as far as the recipe says it."""
    found: dict[str, str] = {}
    if facts.dataset.stages:
        found["_row"] = "number of the row, which rows made from it have as `_parent`"
    if (parent := facts.dataset.parent_stage) is not None:
        found["_parent"] = f"the row of stage `{_inline(parent)}` that it was made from, or the rows"
        found["_k"] = "number of the row among those with the same `_parent`"
    models = facts.recipe.models()
    for column in facts.recipe.columns():
        kind, name = column.get("type"), str(column.get("name"))
        used = column.get("model")
        model = models.get(used, {}).get("model", used) if isinstance(used, str) else None
        source = f" from `{_inline(str(column['of']))}`" if isinstance(column.get("of"), str) else ""
        found[name] = f"{kind}{source}" + (f", by `{_inline(str(model))}`" if model else "")
    return found


def _type(dtype: pa.DataType) -> str:
    return "json" if is_json(dtype) else str(dtype).replace("large_", "")


def _counts(facts: _Facts) -> str:
    report = facts.report
    unfinished = sum(len(each) for each in report.unfinished)
    named = {
        "requested": report.requested,
        "candidates": report.candidates,
        "added by processors": report.added,
        "in the dataset": report.written,
        "removed by processors": report.removed,
        "dropped": len(report.dropped),
        "unfinished": unfinished,
    }
    always = ("requested", "in the dataset", "dropped")
    return _table(("rows", ""), [(name, f"{count:,}") for name, count in named.items() if count or name in always])


def _usage(facts: _Facts) -> Iterator[str]:
    models, used = facts.recipe.models(), facts.report.model_usage
    if not used:
        return
    rows = []
    for alias, usage in used.items():
        spec = models.get(alias, {})
        model = str(spec.get("model", alias))
        where = str(spec.get("base_url") or spec.get("type") or "")
        cost = f"{usage.cost:,.4f}"
        rows.append(
            (
                f"`{_inline(alias)}`",
                f"`{_inline(model)}`",
                _inline(_host(where)),
                f"{usage.calls:,}",
                f"{usage.input_tokens:,}",
                f"{usage.output_tokens:,}",
                cost,
            )
        )
    yield "## Models\n\n" + _table(("alias", "model", "provider", "calls", "tokens in", "tokens out", "cost"), rows)


def _host(url: str) -> str:
    """The host of a URL."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] if "://" in url else url


def _drops(facts: _Facts) -> Iterator[str]:
    reasons = list(facts.report.drops_by_reason.items())
    if not reasons:
        return
    rows = [(f"{count:,}", _inline(reason[:200])) for reason, count in reasons[:_SHOWN_DROPS]]
    more = f"\n\nAnd {len(reasons) - _SHOWN_DROPS} other reasons." if len(reasons) > _SHOWN_DROPS else ""
    yield "## Dropped rows\n\n" + _table(("rows", "reason"), rows) + more


def _provenance(facts: _Facts) -> str:
    header = read_manifest(facts.dataset.path).header
    assert header is not None  # a manifest without one cannot be opened
    lines = [
        f"- Generated with seedbed {header.version}, begun on {_day(header.created)}.",
        f"- State: {'complete' if facts.dataset.complete else 'not complete'}.",
    ]
    if "seed" in facts.recipe.data:
        lines.append(f"- Seed: {facts.recipe.data['seed']}.")
    if facts.recipe.text:
        digest = hashlib.sha256(facts.recipe.text.encode()).hexdigest()
        lines.append(f"- The recipe below has the SHA-256 `{digest}`.")
    return "\n".join(lines)


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()


def _recipe_section(text: str) -> Iterator[str]:
    if not text:
        return
    shown = text if len(text) <= _LONGEST_RECIPE else f"{text[:_LONGEST_RECIPE]}\n# … cut"
    fence = "```"
    while fence in shown:
        fence += "`"
    yield f"## Recipe\n\n{fence}yaml\n{shown.rstrip()}\n{fence}"


def _table(heads: Sequence[str], rows: Any) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _inline(text: str) -> str:
    """Text of others in a line of markdown: no break, no column of a table, no HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


# Croissant 1.1

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "prov": "http://www.w3.org/ns/prov#",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def _croissant(facts: _Facts) -> dict[str, Any]:
    header = read_manifest(facts.dataset.path).header
    assert header is not None  # as above
    options = facts.options
    how = _generated(facts)
    files: list[Any] = [
        {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": name,
            "contentSize": f"{part.size} B",
            "encodingFormat": "application/x-parquet",
            "sha256": _sha256(facts.dataset.path, part),
        }
        for name, part in facts.files
    ]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": facts.title,
        "description": options.description or _summary(facts),
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        **({"license": options.license} if options.license else {}),
        **({"inLanguage": list(options.languages)} if options.languages else {}),
        "keywords": list(dict.fromkeys(["synthetic", "seedbed", *options.tags])),
        "dateCreated": _day(header.created),
        "version": "1.0.0",
        "distribution": [
            *files,
            {
                "@type": "cr:FileSet",
                "@id": "parquet",
                "name": "parquet",
                "encodingFormat": "application/x-parquet",
                "includes": _pattern([name for name, _ in facts.files]),
            },
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "rows",
                "name": "rows",
                "field": [_field(field, how.get(field.name, "")) for field in facts.dataset.arrow_schema],
            }
        ],
        "prov:wasGeneratedBy": _activity(facts, header.version, header.created),
        "prov:wasAttributedTo": [
            {"@type": "prov:SoftwareAgent", "prov:label": label}
            for label in (f"seedbed {header.version}", *_agents(facts))
        ],
    }


def _activity(facts: _Facts, version: str, created: float) -> dict[str, Any]:
    report = facts.report
    cost = sum(usage.cost for usage in report.model_usage.values())
    started = datetime.datetime.fromtimestamp(created, datetime.UTC).isoformat(timespec="seconds")
    seed = f", seed {facts.recipe.data['seed']}" if "seed" in facts.recipe.data else ""
    return {
        "@type": "prov:Activity",
        "prov:label": f"seedbed {version} build{seed}: {report.counts}; cost {cost:.4f}",
        "prov:startedAtTime": started,
        **(
            {
                "prov:used": {
                    "@type": "prov:Entity",
                    "prov:label": "recipe",
                    "prov:value": facts.recipe.text[:_LONGEST_RECIPE],
                }
            }
            if facts.recipe.text
            else {}
        ),
    }


def _agents(facts: _Facts) -> Iterator[str]:
    models = facts.recipe.models()
    for alias, usage in facts.report.model_usage.items():
        yield f"{models.get(alias, {}).get('model', alias)}: {usage.calls} calls, {usage.tokens} tokens"


def _sha256(directory: Path, part: PartRecord) -> str:
    with open_part(directory, part) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _field(field: pa.Field[Any], how: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"rows/{field.name}",
        "name": field.name,
        **({"description": how} if how else {}),
        "source": {"fileSet": {"@id": "parquet"}, "extract": {"column": field.name}},
    }
    dtype = field.type
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        found |= {"isArray": True, "arrayShape": "-1"}
        dtype = dtype.value_type
    if pa.types.is_struct(dtype):
        found["subField"] = [_part(f"rows/{field.name}", field.name, each) for each in dtype]
        return found
    return found | {"dataType": _data_type(dtype)}


def _part(parent: str, path: str, field: pa.Field[Any]) -> dict[str, Any]:
    """A field of a struct; what is nested deeper is described as text."""
    return {
        "@type": "cr:Field",
        "@id": f"{parent}/{field.name}",
        "name": field.name,
        "dataType": _data_type(field.type),
        "source": {
            "fileSet": {"@id": "parquet"},
            "extract": {"column": path},
            "transform": {"jsonPath": field.name},
        },
    }


def _data_type(dtype: pa.DataType) -> str:
    if pa.types.is_boolean(dtype):
        return "sc:Boolean"
    if pa.types.is_integer(dtype):
        return "sc:Integer"
    if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "sc:Float"
    if pa.types.is_timestamp(dtype):
        return "sc:DateTime"
    return "sc:Date" if pa.types.is_date(dtype) else "sc:Text"
