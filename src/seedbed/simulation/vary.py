"""What if: settings with another limit, another knob, another model."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import attrs
import yaml

from ..engine.config import RunConfig
from ..errors import ConfigError
from ..graph import nearest
from ..recipe.recipe import Recipe
from .profiles import FIELDS, CallProfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .stage import Setting

_MOST = 64
# A comma that is not inside of brackets.
_COMMA = re.compile(r",(?![^(\[]*[)\]])")
_PLACES = "models.ALIAS.FIELD, columns.NAME.FIELD, run.KNOB or profile.NAME.FIELD"


def parse_vary(text: str) -> tuple[str, list[Any]]:
    """`models.writer.max_parallel_requests=32,64`: the path and the values, which are read as YAML."""
    path, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise ConfigError(f"what is varied is written PATH=VALUE,VALUE, not {text!r}; a path is {_PLACES}")
    return path.strip(), [_value(each) for each in _COMMA.split(values)]


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{text!r} is no value") from None


def variants(setting: Setting, varied: Mapping[str, Sequence[Any]]) -> Iterator[tuple[dict[str, Any], Setting]]:
    """Every combination of what is varied, with its setting."""
    for path, values in varied.items():
        if isinstance(values, str) or not values:
            raise ConfigError(f"{path} is varied over {values!r}, which is no list of values")
    count = 1
    for values in varied.values():
        count *= len(values)
    if count > _MOST:
        raise ConfigError(f"that makes {count} variants; at most {_MOST} are simulated at once")
    for chosen in itertools.product(*varied.values()):
        changes = dict(zip(varied, chosen, strict=True))
        changed = setting
        for path, value in changes.items():
            changed = change(changed, path, value)
        yield changes, changed


def change(setting: Setting, path: str, value: Any) -> Setting:
    """The setting with one thing changed. Raises `ConfigError` for what there is not or cannot be."""
    place, _, rest = path.partition(".")
    if place == "run":
        known = [field.name for field in attrs.fields(RunConfig)]
        if rest not in known:
            raise ConfigError(f"{path}: there is no knob {rest!r}{nearest(rest, known)}")
        return attrs.evolve(setting, config=attrs.evolve(setting.config, **{rest: value}))
    name, dot, field = rest.rpartition(".")
    if place not in ("models", "columns", "profile") or not dot:
        raise ConfigError(f"{path!r} is nothing that can be varied; a path is {_PLACES}")
    if place == "profile":
        if field not in FIELDS:
            raise ConfigError(f"{path}: a profile has no {field!r}{nearest(field, FIELDS)}")
        profile = attrs.evolve(setting.given.get(name, CallProfile()), **{field: value})
        return attrs.evolve(setting, given={**setting.given, name: profile})
    recipe = setting.recipe
    if not isinstance(recipe, Recipe):
        raise ConfigError(f"{path}: only a recipe has {place} that can be varied")
    if place == "models":
        _known(path, "model", name, tuple(recipe.models))
        models = {**recipe.models, name: _evolved(path, recipe.models[name], field, value)}
        return attrs.evolve(setting, recipe=attrs.evolve(recipe, models=models))
    _known(path, "column", name, tuple(spec.name for spec in recipe.columns))
    columns = tuple(_evolved(path, spec, field, value) if spec.name == name else spec for spec in recipe.columns)
    access = recipe.access
    if access is not None:
        # A path that the user gives, and not the file, is allowed.
        before = {given for spec in recipe.columns for given in spec.paths()}
        access = access.granting(
            recipe.base / given for spec in columns for given in spec.paths() if given not in before
        )
    return attrs.evolve(setting, recipe=attrs.evolve(recipe, columns=columns, access=access))


def _known(path: str, kind: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise ConfigError(f"{path}: there is no {kind} {name!r}{nearest(name, names)}")


def _evolved(path: str, spec: Any, field: str, value: Any) -> Any:
    known = [each.name for each in attrs.fields(type(spec)) if each.init]
    if field not in known:
        raise ConfigError(f"{path}: it has no field {field!r}{nearest(field, known)}")
    return attrs.evolve(spec, **{field: value})
