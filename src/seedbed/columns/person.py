"""Synthetic people, by Faker."""

from __future__ import annotations

import random
import re
import unicodedata
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import polars as pl

from .. import checks
from ..errors import ConfigError
from ..graph import nearest
from .code import import_extra
from .sampler import Draw, Sampler, check_order

if TYPE_CHECKING:
    from .base import Column
    from .spec import Environment


def _date(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            return value
    return value.date() if isinstance(value, datetime) else value


def _are_ages(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2
    return is_pair and all(checks.is_whole(age) and 0 <= age <= 130 for age in value)


_check_date = checks.expect("a date", lambda value: isinstance(value, date))
_check_ages = checks.expect("the youngest and the oldest age, two whole numbers from 0 to 130", _are_ages)
_check_locales = checks.expect(
    'a locale such as "fr_FR", or a list of them',
    lambda value: isinstance(value, tuple) and bool(value) and all(isinstance(each, str) for each in value),
)


@attrs.frozen(kw_only=True)
class Person(Sampler):
    """A person who does not exist, as one structured value; needs Faker (`seedbed[person]`)."""

    type: ClassVar[str] = "person"

    locale: tuple[str, ...] = attrs.field(default=("en_US",), converter=checks.as_names, validator=_check_locales)
    """Where the person is from; of several locales, each person is from one."""
    age: tuple[int, int] = attrs.field(default=(18, 90), converter=checks.as_tuple, validator=_check_ages)
    """The youngest and the oldest age."""
    sex: str | None = attrs.field(default=None, validator=checks.optional(checks.one_of("female", "male")))
    """Only persons of this sex; by default both."""
    as_of: date = attrs.field(default=date(2025, 1, 1), converter=_date, validator=_check_date)
    """The day on which they have this age: a constant, so that the same seed always gives the same persons."""

    def __attrs_post_init__(self) -> None:
        check_order(self, *self.age, names="the two ages")

    def to_column(self, environment: Environment) -> Column:
        faker: Any = import_extra("faker", extra="person", column=self.name)
        known = sorted(faker.config.AVAILABLE_LOCALES)
        for locale in self.locale:
            if locale not in known:
                raise ConfigError(f"column {self.name!r}: Faker has no locale {locale!r}{nearest(locale, known)}")
        # Row groups draw at the same time in several threads, and a source has the state of its random numbers: each
        # call takes sources from here, or creates them, and puts them back.
        idle: list[dict[str, _Source]] = []

        def people(draw: Draw) -> list[dict[str, Any]]:
            try:
                sources = idle.pop()
            except IndexError:
                sources = {locale: _Source(faker, locale) for locale in self.locale}
            found = [_person(self, sources, seed) for seed in draw.stream.words(draw.rows)[:, 0].tolist()]
            idle.append(sources)
            return found

        return self.draw_column(environment, people, PERSON)


_TYPES: dict[str, Any] = {"age": pl.Int64, "birth_date": pl.Date, "interests": pl.List(pl.String)}
_FIELDS = (
    *("name", "first_name", "last_name", "sex", "age", "birth_date"),
    *("street", "house_number", "street_name", "unit", "city", "state", "postcode", "country"),
    *("email", "phone", "locale", "marital_status", "education", "occupation", "interests", "background"),
)
PERSON = pl.Struct({name: _TYPES.get(name, pl.String) for name in _FIELDS})
# Weights of each level for adults; the last two need more years than the youngest adults have had.
_EDUCATION = {
    "secondary school": 34,
    "vocational training": 26,
    "bachelor's degree": 24,
    "master's degree": 13,
    "doctorate": 3,
}
_YEARS_OF_EDUCATION = {"bachelor's degree": 21, "master's degree": 23, "doctorate": 27}
# Weights of single, married, divorced and widowed, up to an age.
_MARITAL_STATUS = ("single", "married", "divorced", "widowed")
_MARITAL_WEIGHTS = ((24, (90, 10, 0, 0)), (34, (52, 44, 4, 0)), (54, (22, 62, 15, 1)), (130, (9, 58, 17, 16)))
_RETIREMENT = 67
_INTERESTS = (
    *("astronomy", "baking", "baseball", "basketball", "bird watching", "board games", "camping", "ceramics", "chess"),
    *("choir singing", "cinema", "climbing", "collecting stamps", "cooking", "crossword puzzles", "cycling", "dancing"),
    *("documentaries", "drawing", "electronics", "fishing", "football", "gardening", "genealogy", "guitar", "hiking"),
    *("history", "home brewing", "jazz", "jigsaw puzzles", "knitting", "languages", "live music", "martial arts"),
    *("meditation", "model trains", "motorcycles", "museums", "opera", "painting", "photography", "piano", "podcasts"),
    *("poetry", "politics", "pottery", "reading novels", "restoring furniture", "running", "sailing"),
    *("science fiction", "sewing", "skiing", "swimming", "tennis", "theatre", "travelling", "video games"),
    *("volunteering", "woodworking", "writing", "yoga"),
)
# Languages that write the family name first, and what they write between the names.
_FAMILY_NAME_FIRST = {"hu": " ", "ja": " ", "ko": "", "vi": " ", "zh": ""}
# Reserved for examples (RFC 2606): no mail reaches a real person.
_DOMAINS = ("example.com", "example.org", "example.net")


class _Source:
    """Names and addresses of one locale. Used by one thread at a time."""

    def __init__(self, faker: Any, locale: str) -> None:
        self.random = random.Random()
        self.fake = faker.Factory.create(locale)
        self.fake.random = self.random
        self.locale = locale
        for provider in self.fake.get_providers() if locale == "it_IT" else ():
            # Faker builds the list of cities from a set: its order differs from process to process.
            if hasattr(provider, "cities"):
                provider.cities = sorted(provider.cities)
        try:
            self.country: str | None = self.fake.current_country()
        except (AttributeError, ValueError):  # a locale of no country
            self.country = None

    def name(self, part: str, sex: str) -> str:
        """A `first_name` or `last_name`; some locales have no separate ones for women and men."""
        return str((getattr(self.fake, f"{part}_{sex}", None) or getattr(self.fake, part))())

    def text(self, *kinds: str) -> str | None:
        """The first of these kinds that the locale has, such as `city`; None if it has none of them."""
        provide = next((provide for kind in kinds if (provide := getattr(self.fake, kind, None))), None)
        return None if provide is None else " ".join(str(provide()).split())


def _person(spec: Person, sources: dict[str, _Source], seed: int) -> dict[str, Any]:
    source = sources[spec.locale[seed % len(spec.locale)]]
    draw = source.random
    draw.seed(seed)
    sex = spec.sex or ("female", "male")[draw.getrandbits(1)]
    age = draw.randint(*spec.age)
    first, last = source.name("first_name", sex), source.name("last_name", sex)
    language = source.locale.partition("_")[0]
    street, city = source.text("street_address"), source.text("city")
    # A state, province or region, whatever the locale calls it.
    state = source.text("administrative_unit", "state", "region")
    postcode = source.text("postcode")
    return {
        "name": f"{last}{_FAMILY_NAME_FIRST[language]}{first}" if language in _FAMILY_NAME_FIRST else f"{first} {last}",
        "first_name": first,
        "last_name": last,
        "sex": sex,
        "age": age,
        "birth_date": _birth_date(spec.as_of, age, draw.random()),
        "street": street,
        **street_parts(street),
        "city": city,
        "state": state,
        "postcode": postcode,
        "country": source.country,
        "email": f"{_mailbox(first, last)}{draw.randrange(100)}@{_DOMAINS[draw.randrange(len(_DOMAINS))]}",
        "phone": source.text("phone_number"),
        "locale": source.locale,
        **_life(source, first, age, city),
    }


# How locales name an apartment, a floor or a part of a house, and how they mark the number of a house.
_UNIT = (
    r"(?:Apt|Apto|Ap|Appartamento|Bl|Depto|Dpto|Edif|Flat|Interior|Level|Of|Piano|Piso|Puerta|Sc|Studio|Suite|Unit"
    r"|стр|к|кв|واحد|سوئیت)\b\.?"
)
_MARK = r"(?:(?:H\.No\.|Nr\.|No\.|N°|#|д\.|буд\.) ?)?"
_STREETS = (
    # 12 High Street Apt. 3
    rf"{_MARK}(?P<house_number>\d\S*?),? (?P<street_name>.+?)(?: (?P<unit>{_UNIT}.*))?",
    # Flat 3 High Street
    rf"(?P<unit>{_UNIT} \S+) (?:(?P<house_number>\d\S*) )?(?P<street_name>.+)",
    # Via Roma, 12 Appartamento 3
    rf"(?P<street_name>.+?),? {_MARK}(?P<house_number>\d\S*) (?P<unit>{_UNIT}.*)",
    # Hauptstraße 12
    rf"(?P<street_name>.+?),? {_MARK}(?P<house_number>\d\S*)(?: \(.+\))?(?P<unit>)",
    # 新生街7號
    r"(?P<street_name>.+?)(?P<house_number>\d+)號(?P<unit>.*)",
    r"(?P<street_name>.*)(?P<house_number>)(?P<unit>)",
)


def street_parts(street: str | None) -> dict[str, str | None]:
    """The house number, the name of the street, and the apartment or suite, as far as the street has them."""
    found = next(found for form in _STREETS if (found := re.fullmatch(form, street or "", re.DOTALL)))
    return {field: found[field] or None for field in ("house_number", "street_name", "unit")}


def _life(source: _Source, first: str, age: int, city: str | None) -> dict[str, Any]:
    """Education, occupation, marital status and interests that fit the age, and a short text with them."""
    draw = source.random
    weights = next(weights for oldest, weights in _MARITAL_WEIGHTS if age <= oldest)
    status = draw.choices(_MARITAL_STATUS, weights)[0]
    levels = {level: weight for level, weight in _EDUCATION.items() if age >= _YEARS_OF_EDUCATION.get(level, 18)}
    education = draw.choices(list(levels), list(levels.values()))[0] if levels else "primary school"
    job = source.text("job") or "self-employed"
    occupation = job if age < _RETIREMENT else "retired"
    interests = draw.sample(_INTERESTS, 3)
    home = draw.choice(("grew up in", "moved to", "has always lived in", "recently settled in"))
    past = f", formerly {job}" if occupation == "retired" else ""
    if age < 18:
        status, occupation = "single", "pupil"
    if age < 6:
        education = occupation = "none"
    return {
        "marital_status": status,
        "education": education,
        "occupation": occupation,
        "interests": interests,
        "background": f"{first}, {age}, {home} {city or 'the country'}. Occupation: {occupation}{past}. "
        f"Education: {education}. Interests: {', '.join(interests)}.",
    }


def _birth_date(as_of: date, age: int, share: float) -> date:
    """A birth date of a person who is `age` on the day `as_of`: `share` of the way through all such days."""
    latest = _years_before(as_of, age)
    earliest = _years_before(as_of, age + 1) + timedelta(days=1)
    return earliest + timedelta(days=int(share * ((latest - earliest).days + 1)))


def _years_before(day: date, years: int) -> date:
    try:
        return day.replace(year=day.year - years)
    except ValueError:  # the 29th of February of another year
        return date(day.year - years, 2, 28)


def _mailbox(first: str, last: str) -> str:
    """The local part of an e-mail address, in ASCII."""
    plain = unicodedata.normalize("NFKD", f"{first}.{last}").encode("ascii", "ignore").decode().lower()
    # A name without ASCII letters is only the dot here.
    return re.sub(r"[^a-z.]+", "", plain).strip(".") or "person"
