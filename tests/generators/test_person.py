from __future__ import annotations

import sys
import threading
from datetime import date
from typing import Any

import pytest
from sampling import drawn

import seedbed
from seedbed.errors import ConfigError
from seedbed.generators.person import PERSON
from seedbed.generators.registry import Environment, make_column
from seedbed.recipe.samplers import Person

pytest.importorskip("faker")


def test_a_person() -> None:
    """Every part is there and they fit together."""
    for person in drawn(Person("p"), 30):
        assert list(person) == [field.name for field in PERSON.fields]
        assert person["name"] == f"{person['first_name']} {person['last_name']}"
        assert person["country"] == "United States"
        assert person["email"].partition("@")[2] in {"example.com", "example.org", "example.net"}
        assert all(person[field] for field in ("street", "city", "postcode", "phone"))
        assert "\n" not in person["street"]


@pytest.mark.parametrize("as_of", [date(2025, 1, 1), date(2024, 2, 29), date(2025, 2, 28)])
def test_birth_dates_give_the_age(as_of: date) -> None:
    """On the day `as_of` everybody is as old as is said, within the range, whose ends come up."""
    people = drawn(Person("p", age=(20, 23), as_of=as_of), 200)
    for person in people:
        born = person["birth_date"]
        had_birthday = (born.month, born.day) <= (as_of.month, as_of.day)
        assert as_of.year - born.year - (not had_birthday) == person["age"]
    assert {person["age"] for person in people} == {20, 21, 22, 23}


def test_sexes() -> None:
    """Both come, or the one that is asked for."""
    assert {person["sex"] for person in drawn(Person("p"), 50)} == {"female", "male"}
    assert {person["sex"] for person in drawn(Person("p", sex="female"), 50)} == {"female"}


def test_locales() -> None:
    """People come from the locales that are asked for; addresses are ASCII whatever the names are."""
    people = drawn(Person("p", locale=["fr_FR", "ja_JP"]), 60)
    assert {(person["locale"], person["country"]) for person in people} == {("fr_FR", "France"), ("ja_JP", "Japan")}
    assert all(person["email"].isascii() and person["email"][0].isalpha() for person in people)


def test_a_locale_without_a_phone() -> None:
    """What a locale does not have is null."""
    (person,) = drawn(Person("p", locale="tl_PH"), 1)
    assert person["phone"] is None


def test_an_unknown_locale_is_refused() -> None:
    """The nearest one that there is is named."""
    with pytest.raises(ConfigError, match=r"column 'p': Faker has no locale 'fr_FX'.*'fr_FR'"):
        make_column(Person("p", locale="fr_FX"), Environment())


def test_people_belong_to_rows() -> None:
    """Where a call begins does not matter, nor what was drawn before."""
    spec = Person("p", locale=["en_US", "de_DE"])
    people = drawn(spec, range(1_000, 1_060))
    assert drawn(spec, range(1_020, 1_040)) == people[20:40]
    assert drawn(spec, range(1_000, 1_060), seed=8) != people


def test_people_drawn_at_the_same_time() -> None:
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


def test_people_in_a_build() -> None:
    """The declared type holds them."""
    frame = seedbed.preview([make_column(Person("p"), Environment(seed=7))], rows=5).to_polars()
    assert frame.schema["p"] == PERSON
    assert frame["p"].to_list() == drawn(Person("p"), 5)


def test_without_faker_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe with people says what to install."""
    monkeypatch.setitem(sys.modules, "faker", None)
    with pytest.raises(ConfigError, match=r"column 'p' needs faker, .*: install seedbed\[person\]"):
        make_column(Person("p"), Environment())
