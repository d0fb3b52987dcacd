"""People who do not exist, by Faker."""

from __future__ import annotations

import random
import re
import unicodedata
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl

from ..errors import ConfigError
from ..graph import nearest
from ..recipe.samplers import Person
from .drawing import Draw, sampler_column
from .extras import import_extra
from .registry import Environment, maker

if TYPE_CHECKING:
    from .column import Column

PERSON = pl.Struct(
    {
        "name": pl.String,
        "first_name": pl.String,
        "last_name": pl.String,
        "sex": pl.String,
        "age": pl.Int64,
        "birth_date": pl.Date,
        "street": pl.String,
        "city": pl.String,
        "postcode": pl.String,
        "country": pl.String,
        "email": pl.String,
        "phone": pl.String,
        "locale": pl.String,
    }
)
# Reserved for examples (RFC 2606): nobody gets mail by accident.
_DOMAINS = ("example.com", "example.org", "example.net")


@maker(Person)
def make_person(spec: Person, environment: Environment) -> Column:
    """A column of people."""
    faker: Any = import_extra("faker", extra="person", column=spec.name)
    known = sorted(import_extra("faker.config", extra="person", column=spec.name).AVAILABLE_LOCALES)
    for locale in spec.locale:
        if locale not in known:
            raise ConfigError(f"column {spec.name!r}: Faker has no locale {locale!r}{nearest(locale, known)}")
    # Row groups draw at the same time in several threads, and a source holds the state of its random numbers: each call
    # takes the sources of its own from here, or makes them, and puts them back.
    idle: list[dict[str, _Source]] = []

    def people(draw: Draw) -> list[dict[str, Any]]:
        try:
            sources = idle.pop()
        except IndexError:
            sources = {locale: _Source(faker, locale) for locale in spec.locale}
        found = [_person(spec, sources, seed) for seed in draw.stream.words(draw.rows)[:, 0].tolist()]
        idle.append(sources)
        return found

    return sampler_column(spec, environment, people, references={}, dtype=PERSON)


class _Source:
    """Names and addresses of one locale. Used by one thread at a time."""

    def __init__(self, faker: Any, locale: str) -> None:
        self.random = random.Random()
        self._fake = faker.Factory.create(locale)
        self._fake.random = self.random
        self.locale = locale
        try:
            self.country: str | None = self._fake.current_country()
        except (AttributeError, ValueError):  # a locale of no country
            self.country = None

    def first_name(self, sex: str) -> str:
        return str((self._get(f"first_name_{sex}") or self._fake.first_name)())

    def last_name(self, sex: str) -> str:
        return str((self._get(f"last_name_{sex}") or self._fake.last_name)())

    def text(self, what: str) -> str | None:
        """A street_address, city, postcode or phone_number; a few locales have not all of them."""
        make = self._get(what)
        return None if make is None else " ".join(str(make()).split())

    def _get(self, what: str) -> Any:
        return getattr(self._fake, what, None)


def _person(spec: Person, sources: dict[str, _Source], seed: int) -> dict[str, Any]:
    source = sources[spec.locale[seed % len(spec.locale)]]
    draw = source.random
    draw.seed(seed)
    sex = spec.sex or ("female", "male")[draw.getrandbits(1)]
    age = draw.randint(*spec.age)
    first, last = source.first_name(sex), source.last_name(sex)
    return {
        "name": f"{first} {last}",
        "first_name": first,
        "last_name": last,
        "sex": sex,
        "age": age,
        "birth_date": _birth_date(spec.as_of, age, draw.random()),
        "street": source.text("street_address"),
        "city": source.text("city"),
        "postcode": source.text("postcode"),
        "country": source.country,
        "email": f"{_address(first, last)}{draw.randrange(100)}@{_DOMAINS[draw.randrange(len(_DOMAINS))]}",
        "phone": source.text("phone_number"),
        "locale": source.locale,
    }


def _birth_date(as_of: date, age: int, share: float) -> date:
    """A day such that somebody born on it is `age` on the day `as_of`: `share` of the way through those days."""
    latest = _years_before(as_of, age)
    earliest = _years_before(as_of, age + 1) + timedelta(days=1)
    return earliest + timedelta(days=int(share * ((latest - earliest).days + 1)))


def _years_before(day: date, years: int) -> date:
    try:
        return day.replace(year=day.year - years)
    except ValueError:  # the 29th of February of another year
        return date(day.year - years, 2, 28)


def _address(first: str, last: str) -> str:
    plain = unicodedata.normalize("NFKD", f"{first}.{last}").encode("ascii", "ignore").decode().lower()
    # What cannot be written in ASCII leaves nothing but the dot.
    return re.sub(r"[^a-z.]+", "", plain).strip(".") or "person"
