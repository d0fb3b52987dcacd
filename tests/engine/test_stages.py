"""Stages: rows that are made from rows of another stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from msgspec.structs import replace
from staged import World, build, recipe, rows_of, same

import seedbed as sb
from seedbed.errors import ManifestError
from seedbed.observe import events
from seedbed.store.manifest import MANIFEST_NAME, encode, read

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_are_made_from_rows(tmp_path: Path) -> None:
    """One row for each item of a list, so many for each row, one for each group; they name their parents."""
    build(recipe(World()), tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    docs, questions, answers = rows["docs"].to_dicts(), rows["questions"].to_dicts(), rows["answers"].to_dicts()
    assert docs[0].keys() == {"_row", "n", "topic", "text", "questions"}
    asked = [(row["_row"], k, item) for row in docs for k, item in enumerate(row["questions"])]
    assert [(row["_parent"], row["_k"], row["question"]) for row in questions] == asked
    assert [(row["_parent"], row["_k"]) for row in answers] == [(row["_row"], k) for row in questions for k in (0, 1)]
    # Columns of earlier stages are seen, and not stored again.
    assert answers[0].keys() == {"_row", "_parent", "_k", "draw", "said", "about"}
    of_question = {row["_row"]: row for row in questions}
    topics = {row["_row"]: row["topic"] for row in docs}
    for row in answers:
        question = of_question[row["_parent"]]
        assert row["about"] == f"{topics[question['_parent']]}: {question['question']}"
    sets = rows["sets"].to_dicts()
    assert sorted(row for each in sets for row in each["_parent"]) == [row["_row"] for row in answers]
    for each in sets:
        assert [member["_row"] for member in each["answers"]] == each["_parent"]
        assert {topics[of_question[answers[row]["_parent"]]["_parent"]] for row in each["_parent"]} == {each["topic"]}


def test_joined_has_the_columns_of_all_parents(tmp_path: Path) -> None:
    """Each row comes with those that it was made from; a row of a group once for each member."""
    build(recipe(World()), tmp_path / "out")
    dataset = sb.Dataset.open(tmp_path / "out")
    answers = dataset.stage("answers")
    joined = answers.joined()
    assert joined.height == answers.rows
    assert {"said", "question", "questions._parent", "text", "topic"} <= set(joined.columns)
    assert joined.filter(joined["asked"] != "asked of " + joined["question"]).is_empty()
    assert dataset.joined().height == answers.rows
    assert dataset.stage("docs").joined().equals(dataset.stage("docs").to_polars())
    with pytest.raises(KeyError, match="no stage 'answer'; it has 'docs', 'questions'"):
        dataset.stage("answer")


@pytest.mark.parametrize("options", [{"buffer_size": 3}, {"engine": "sequential"}, {"max_concurrent_row_groups": 1}])
def test_the_rows_do_not_depend_on_what_finishes_first(options: dict[str, Any], tmp_path: Path) -> None:
    """Rows, numbers and draws are the same whatever takes how long."""
    build(recipe(World(salt=1)), tmp_path / "one")
    build(recipe(World(salt=2), **options), tmp_path / "other")
    same(rows_of(tmp_path / "one"), rows_of(tmp_path / "other"))


def test_rows_of_each_do_not_depend_on_row_groups(tmp_path: Path) -> None:
    """Row groups of another size give the same rows."""
    build(recipe(World()), tmp_path / "one")
    build(recipe(World(), buffer_size=1000), tmp_path / "other")
    one, other = rows_of(tmp_path / "one"), rows_of(tmp_path / "other")
    same(one, other)


def test_a_row_is_not_begun_before_its_parents_are_stored_and_stages_overlap(tmp_path: Path) -> None:
    """A row group of a stage is admitted once that of its parents is on disk, and not only at the end of the stage."""
    seen: list[Any] = []
    kinds = (events.RowGroupAdmitted, events.RowGroupFinished, events.RowsTaken)
    note = lambda event: seen.append(event) if type(event) in kinds else None  # noqa: E731
    build(recipe(World()), tmp_path / "out", rows=40, reader=note)
    finished: dict[str, set[int]] = {}
    taken = 0
    for event in seen:
        if isinstance(event, events.RowGroupFinished):
            finished.setdefault(event.stage, set()).add(event.row_group)
        elif isinstance(event, events.RowsTaken) and event.stage == "questions":
            # Row groups are taken in order: all before it are there too.
            assert set(range(taken + 1)) <= finished["docs"]
            taken += 1
        elif isinstance(event, events.RowGroupAdmitted) and event.stage == "questions":
            assert taken
    order = [(type(event), event.stage) for event in seen]
    assert order.index((events.RowGroupAdmitted, "answers")) < len(order) - 1 - order[::-1].index(
        (events.RowGroupFinished, "docs")
    )


def test_a_dropped_row_has_no_children_until_it_succeeds(tmp_path: Path) -> None:
    """Its children follow all others when it is retried; no other row changes."""
    whole = rows_of_all(tmp_path / "whole")
    lost = whole["docs"]["n"][1]
    world = World(failing={("text", lost)})
    _, report = build(recipe(world), tmp_path / "out")
    assert len(report.stages["docs"].dropped) == 1
    before = rows_of(tmp_path / "out")
    assert lost not in before["docs"]["n"]
    assert 1 not in before["questions"]["_parent"]
    world.failing.clear()
    world.calls.clear()
    build(recipe(world), tmp_path / "out", resume=True, retry_dropped=True)
    after = rows_of(tmp_path / "out")
    assert after["docs"].equals(whole["docs"])
    assert after["questions"].head(before["questions"].height).equals(before["questions"])
    items = ["question", "_parent", "_k", "asked"]
    assert after["questions"].select(items).sort(items).equals(whole["questions"].select(items).sort(items))
    # What was drawn for the rows does not depend on their numbers.
    drawn = ["draw", "about"]
    assert after["answers"].select(drawn).sort(drawn).equals(whole["answers"].select(drawn).sort(drawn))
    assert set(world.calls.values()) <= {1}
    assert {key for column, key in world.calls if column == "text"} == {lost}


def rows_of_all(out: Path) -> Any:
    """The rows of a build without failures."""
    build(recipe(World()), out)
    return rows_of(out)


def test_a_dropped_row_names_the_row_that_it_was_made_from(tmp_path: Path) -> None:
    """So it can be traced to its parent."""
    whole = rows_of_all(tmp_path / "whole")["questions"]
    build(recipe(World(failing={("asked", whole["question"][4])})), tmp_path / "out")
    (dropped,) = sb.Dataset.open(tmp_path / "out").stage("questions").dropped().to_dicts()
    assert (dropped["_row"], dropped["_parent"], dropped["_k"]) == (4, whole["_parent"][4], whole["_k"][4])


def test_it_grows_by_its_first_stage(tmp_path: Path) -> None:
    """Rows that are there stay; but for groups that ended, all is as if built at once."""
    build(recipe(World()), tmp_path / "whole", rows=16)
    world = World()
    build(recipe(world), tmp_path / "out", rows={"docs": 7})
    build(recipe(world), tmp_path / "out", rows=16, resume=True)
    whole, grown = rows_of(tmp_path / "whole"), rows_of(tmp_path / "out")
    for name in ("docs", "questions", "answers"):
        assert grown[name].equals(whole[name]), name
    assert max(world.calls.values()) == 1
    members = [row for each in grown["sets"]["_parent"].to_list() for row in each]
    assert sorted(members) == grown["answers"]["_row"].to_list()


@pytest.mark.parametrize("remainder", ["keep", "drop"])
def test_groups_that_are_not_full(remainder: str, tmp_path: Path) -> None:
    """They are kept or dropped when all rows are there."""
    given = recipe(World())
    *others, sets = given.stages
    assert sets.group is not None
    sets = attrs.evolve(sets, group=attrs.evolve(sets.group, remainder=remainder, by=()))
    build(attrs.evolve(given, stages=[*others, sets]), tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    sizes = [len(each) for each in rows["sets"]["_parent"].to_list()]
    full, rest = divmod(rows["answers"].height, 4)
    assert rest
    assert sizes == [4] * full + ([rest] if remainder == "keep" else [])


def test_groups_without_a_size_have_all_rows_of_a_key(tmp_path: Path) -> None:
    """They are made when all rows are there."""
    given = recipe(World())
    *others, sets = given.stages
    build(attrs.evolve(given, stages=[*others, attrs.evolve(sets, group={"by": "topic"})]), tmp_path / "out")
    assert sorted(rows_of(tmp_path / "out")["sets"]["topic"]) == ["a", "b", "c"]


def test_each_that_is_no_list_stops_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    """The message names stage, row and value; with a recipe that is right nothing is generated again."""
    world = World()
    given = recipe(world)
    docs, questions, *_ = given.stages
    wrong = attrs.evolve(questions, each="{{ text }}")
    message = r"stage 'questions', from stage 'docs', row 0: each: '{{ text }}' is 'text of \d+' and not a list"
    with pytest.raises(sb.BuildStopped, match=message):
        build(attrs.evolve(given, stages=[docs, wrong]), tmp_path / "out")
    build(attrs.evolve(given, stages=[docs, questions]), tmp_path / "out", resume=True)
    assert max(world.calls.values()) == 1
    build(recipe(World()), tmp_path / "whole")
    assert rows_of(tmp_path / "out")["questions"].equals(rows_of(tmp_path / "whole")["questions"].drop("_row"))


def test_the_usage_budget_is_one_for_all_stages(tmp_path: Path) -> None:
    """It ends the run in whichever stage it is used up."""
    given = sb.Recipe(
        stages=[
            sb.Stage("docs", rows=4, columns=[sb.LLMText("text", model="m", prompt="write")]),
            sb.Stage("parts", from_="docs", each=3, columns=[sb.LLMText("part", model="m", prompt="{{ text }}")]),
        ],
        models={"m": sb.Scripted(answers="one two three")},
        run={"max_tokens": 40, "buffer_size": 2},
    )
    with pytest.raises(sb.BudgetExceeded, match="column 'part'") as caught:
        build(given, tmp_path / "out")
    assert caught.value.report is not None
    assert caught.value.report.stages["docs"].written == 4
    _, report = build(attrs.evolve(given, run={"buffer_size": 2}), tmp_path / "out", resume=True)
    assert report.written == 12
    assert report.usage["text"].calls == 4


def test_a_stage_may_accept_only_some_of_its_rows(tmp_path: Path) -> None:
    """Rows that are not accepted have no children, wherever the stage has its rows from."""
    given = recipe(World())
    docs, questions, answers, _ = given.stages
    stages = [
        attrs.evolve(docs, accept="topic != 'a'"),
        questions,
        attrs.evolve(answers, accept="draw > 0.5", unique=("said",)),
        sb.Stage("more", from_="answers", each=1, columns=[sb.Expression("shown", "said ~ draw")]),
    ]
    build(attrs.evolve(given, stages=stages), tmp_path / "out", rows=8)
    rows = rows_of(tmp_path / "out")
    assert rows["docs"].height == 8
    assert "a" not in rows["docs"]["topic"]
    assert set(rows["questions"]["_parent"]) <= set(rows["docs"]["_row"])
    assert rows["answers"]["draw"].min() > 0.5  # type: ignore[operator]
    assert rows["answers"].height < 2 * rows["questions"].height
    assert rows["more"]["_parent"].to_list() == rows["answers"]["_row"].to_list()


def test_the_output_is_at_the_root(tmp_path: Path) -> None:
    """`output` names the stage whose rows the files of the directory are; another one is another dataset."""
    given = attrs.evolve(recipe(World()), output="questions")
    dataset, report = build(given, tmp_path / "out")
    assert dataset.to_polars().equals(rows_of(tmp_path / "out")["questions"])
    assert report.written == dataset.rows
    with pytest.raises(sb.ManifestError, match="its output stage is 'questions', that of this recipe 'sets'"):
        build(recipe(World()), tmp_path / "out", resume=True)


def test_a_preview_has_the_rows_of_the_output_stage() -> None:
    """Stages before it are generated in memory."""
    given = sb.Recipe(
        stages=[
            sb.Stage("docs", columns=[sb.Category("topic", values=["a", "b"])]),
            sb.Stage("parts", from_="docs", each=2, columns=[sb.Expression("part", "topic ~ _k")]),
            sb.Stage("all", from_="parts", group={"by": "topic"}, columns=[sb.Expression("count", "parts | length")]),
        ]
    )
    frame = sb.preview(given, rows=5).to_polars()
    assert sum(frame["count"]) == 10
    assert set(frame["topic"]) <= {"a", "b"}


def test_a_post_batch_processor_keeps_the_numbers_of_rows(tmp_path: Path) -> None:
    """Rows that it removes have no children; one that loses the numbers stops the run."""
    given = recipe(World())
    docs, questions, *_ = given.stages
    stages = [attrs.evolve(docs, processors=[sb.Filter(expr="topic == 'b'")]), questions]
    build(attrs.evolve(given, stages=stages), tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert set(rows["docs"]["topic"]) == {"b"}
    assert set(rows["questions"]["_parent"]) <= set(rows["docs"]["_row"])
    stages = [attrs.evolve(docs, processors=[sb.DropColumns(columns=["_row"])]), questions]
    with pytest.raises(sb.ProcessorFailed, match="lost '_row', by which other stages name the rows that they take"):
        build(attrs.evolve(given, stages=stages), tmp_path / "other")


def test_a_simulation_has_stages(tmp_path: Path) -> None:
    """Lists that models write are placeholders of a length that is given."""
    schema = {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string"}}}}
    given = sb.Recipe(
        stages=[
            sb.Stage(
                "docs",
                rows=20,
                columns=[sb.LLMStructured("plan", model="m", prompt="?", schema={**schema, "required": ["list"]})],
            ),
            sb.Stage(
                "parts",
                from_="docs",
                each="{{ plan.list }}",
                columns=[sb.LLMText("part", model="m", prompt="{{ item }}")],
            ),
        ],
        models={"m": sb.Scripted()},
    )
    found = sb.simulate(given, items={"parts": 5}, seeds=1)
    assert found.base.written.mean == 100
    assert any("parts" in note for note in sb.simulate(given, seeds=1).base.notes)


def test_a_stage_whose_rows_come_from_nowhere_is_an_error(tmp_path: Path) -> None:
    """A directory that names a source that it lacks is no directory that a run wrote."""
    out = tmp_path / "out"
    build(recipe(World()), out)
    directory = sb.Dataset.open(out).stage("questions").path
    manifest = read(directory)
    header = manifest.header
    assert header is not None
    assert header.source is not None
    others = [each for each in manifest.records() if each is not header]
    other = replace(header, source=replace(header.source, stage="elsewhere"))
    (directory / MANIFEST_NAME).write_bytes(b"".join(map(encode, (other, *others))))
    with pytest.raises(ManifestError, match="has rows of a stage 'elsewhere' that it lacks"):
        sb.Dataset.open(out).stage("questions").joined()
    with pytest.raises(sb.SeedbedError):
        build(recipe(World()), out, resume=True)
