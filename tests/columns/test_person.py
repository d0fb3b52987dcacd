from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import date
from typing import Any

import pytest
from sampling import drawn

import seedbed
from seedbed.columns.person import PERSON, Person, street_parts
from seedbed.columns.spec import Environment, make_column
from seedbed.errors import ConfigError

pytest.importorskip("faker")


def test_the_fields_of_a_person_are_consistent() -> None:
    """Every field has a value, and names, address and e-mail match each other."""
    for person in drawn(Person("p"), 30):
        assert list(person) == [field.name for field in PERSON.fields]
        assert person["name"] == f"{person['first_name']} {person['last_name']}"
        assert person["country"] == "United States"
        assert person["email"].partition("@")[2] in {"example.com", "example.org", "example.net"}
        assert all(person[field] for field in ("street", "city", "postcode", "phone"))
        assert "\n" not in person["street"]


@pytest.mark.parametrize("as_of", [date(2025, 1, 1), date(2024, 2, 29), date(2025, 2, 28)])
def test_birth_dates_give_the_age(as_of: date) -> None:
    """On the day `as_of` each person has the given age; ages cover the range, its ends included."""
    people = drawn(Person("p", age=(20, 23), as_of=as_of), 200)
    for person in people:
        born = person["birth_date"]
        had_birthday = (born.month, born.day) <= (as_of.month, as_of.day)
        assert as_of.year - born.year - (not had_birthday) == person["age"]
    assert {person["age"] for person in people} == {20, 21, 22, 23}


def test_education_occupation_and_status_match_the_age() -> None:
    """Children go to school and are single, old people are retired, degrees take years; texts repeat the fields."""
    people = drawn(Person("p", age=(0, 100)), 400)
    for person in people:
        assert (person["occupation"] in {"pupil", "none"}) == (person["age"] < 18)
        assert (person["occupation"] == "retired") == (person["age"] >= 67)
        assert person["age"] >= 18 or person["marital_status"] == "single"
        assert person["age"] >= 27 or person["education"] != "doctorate"
        assert len(set(person["interests"])) == 3
        assert all(text in person["background"] for text in (person["city"], person["education"], *person["interests"]))
    assert {person["marital_status"] for person in people} == {"single", "married", "divorced", "widowed"}
    assert len({person["occupation"] for person in people}) > 50


@pytest.mark.parametrize("locale", ["en_US", "en_GB", "de_DE", "fr_FR", "pt_BR", "ja_JP"])
def test_street_parts_are_pieces_of_the_street(locale: str) -> None:
    """Number, name and unit together are the street without its commas."""
    people = drawn(Person("p", locale=locale), 50)
    for person in people:
        parts = [person[field] for field in ("house_number", "street_name", "unit") if person[field] is not None]
        assert all(part in person["street"] for part in parts)
        assert sum(map(len, parts)) + len(parts) - 1 + person["street"].count(",") == len(person["street"])
    assert all(person["state"] for person in people)
    assert any(person["house_number"] for person in people)


@pytest.mark.parametrize(
    ("street", "number", "name", "unit"),
    [
        ("3674 Goodman Manor Suite 135", "3674", "Goodman Manor", "Suite 135"),
        ("Studio 3 Price Plains", None, "Price Plains", "Studio 3"),
        ("Level 8 120 Middleton Drive", "120", "Middleton Drive", "Level 8"),
        ("H.No. 73, Chaudry Marg", "73", "Chaudry Marg", None),
        ("Hauptstraße 12a", "12a", "Hauptstraße", None),
        ("47, avenue René Morvan", "47", "avenue René Morvan", None),
        ("Borgo Polesel, 884 Appartamento 83", "884", "Borgo Polesel", "Appartamento 83"),
        ("Pasadizo de Ambrosio Solana 30 Apt. 57", "30", "Pasadizo de Ambrosio Solana", "Apt. 57"),
        ("Cerrada Norte Razo 847 Interior 671", "847", "Cerrada Norte Razo", "Interior 671"),
        ("Avda. Las Rosas 2 Dpto. 9875", "2", "Avda. Las Rosas", "Dpto. 9875"),
        ("Cl. 36 # 81-32", "81-32", "Cl. 36", None),
        ("Avenida 4 N° 732", "732", "Avenida 4", None),
        ("Soseaua Aanei Nr. 684 Bl. 67 Sc. 54 Ap. 685", "684", "Soseaua Aanei", "Bl. 67 Sc. 54 Ap. 685"),
        ("наб. Водников, д. 86 стр. 9", "86", "наб. Водников", "стр. 9"),
        ("узвіз Юхима Геллера, буд. 807 кв. 0", "807", "узвіз Юхима Геллера", "кв. 0"),
        ("al. Konstytucji 3 Maja 807", "807", "al. Konstytucji 3 Maja", None),
        ("新生街7號", "7", "新生街", None),
        ("대전광역시 동구 반포대길 116 (경숙김정마을)", "116", "대전광역시 동구 반포대길", None),
        ("万路r座", None, "万路r座", None),
        ("", None, None, None),
    ],
)
def test_the_parts_of_a_street(street: str, number: str | None, name: str | None, unit: str | None) -> None:
    """Wherever the locale writes the number, and whatever it calls an apartment."""
    assert street_parts(street) == {"house_number": number, "street_name": name, "unit": unit}


@pytest.mark.parametrize(
    ("locale", "form"),
    [
        ("en_US", "{first_name} {last_name}"),
        ("ja_JP", "{last_name} {first_name}"),
        ("hu_HU", "{last_name} {first_name}"),
        ("zh_CN", "{last_name}{first_name}"),
        ("ko_KR", "{last_name}{first_name}"),
    ],
)
def test_names_are_written_in_the_order_of_the_locale(locale: str, form: str) -> None:
    """The family name comes first where people write it first."""
    for person in drawn(Person("p", locale=locale), 10):
        assert person["name"] == form.format(**person)


def test_sex_selects_people() -> None:
    """Both sexes are drawn, or only the given one."""
    assert {person["sex"] for person in drawn(Person("p"), 50)} == {"female", "male"}
    assert {person["sex"] for person in drawn(Person("p", sex="female"), 50)} == {"female"}


def test_people_are_from_the_given_locales() -> None:
    """Each person is from one of the locales; e-mail addresses are ASCII for any name."""
    people = drawn(Person("p", locale=["fr_FR", "ja_JP"]), 60)
    assert {(person["locale"], person["country"]) for person in people} == {("fr_FR", "France"), ("ja_JP", "Japan")}
    assert all(person["email"].isascii() and person["email"][0].isalpha() for person in people)


def test_a_missing_field_of_a_locale_is_null() -> None:
    """A field that a locale lacks is null."""
    (person,) = drawn(Person("p", locale="tl_PH"), 1)
    assert person["phone"] is None


def test_an_unknown_locale_is_rejected() -> None:
    """The message suggests the nearest known locale."""
    with pytest.raises(ConfigError, match=r"column 'p': Faker has no locale 'fr_FX'.*'fr_FR'"):
        make_column(Person("p", locale="fr_FX"), Environment())


def test_a_person_depends_on_its_row_only() -> None:
    """The first row of a call and earlier draws have no effect."""
    spec = Person("p", locale=["en_US", "de_DE"])
    people = drawn(spec, range(1_000, 1_060))
    assert drawn(spec, range(1_020, 1_040)) == people[20:40]
    assert drawn(spec, range(1_000, 1_060), seed=8) != people


_CITIES = """
from seedbed import Person
from seedbed.columns.spec import Environment
column = Person("p", locale="it_IT").to_column(Environment(seed=7))
print([person["city"] for person in column.generator(range(20))])
"""


def test_people_do_not_depend_on_the_process() -> None:
    """The order of sets, which differs between processes, has no effect on the cities of Italy."""
    found = [
        subprocess.run(
            [sys.executable, "-c", _CITIES],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert found[0] == found[1]


def test_threads_draw_independently() -> None:
    """Threads that draw from one column at once do not disturb each other."""
    column = make_column(Person("p"), Environment(seed=7))
    assert column.call is not None
    found: dict[int, list[Any]] = {}

    def draw(part: int) -> None:
        assert column.call is not None
        found[part] = column.call.function(range(part * 40, part * 40 + 40))

    threads = [threading.Thread(target=draw, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [person for part in range(4) for person in found[part]] == drawn(Person("p"), 160)


def test_people_have_the_declared_type_in_a_build() -> None:
    """A build writes people with the declared type."""
    frame = seedbed.preview([make_column(Person("p"), Environment(seed=7))], rows=5).to_polars()
    assert frame.schema["p"] == PERSON
    assert frame["p"].to_list() == drawn(Person("p"), 5)


def test_without_faker_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Faker the message names the extra to install."""
    monkeypatch.setitem(sys.modules, "faker", None)
    with pytest.raises(ConfigError, match=r"column 'p' needs faker, .*: install seedbed\[person\]"):
        make_column(Person("p"), Environment())
