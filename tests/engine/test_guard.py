"""Which directory a build may continue with, and the message for one that it may not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import seedbed as sb
from seedbed.engine.changes import Progress, check_resumable
from seedbed.engine.source import make_source
from seedbed.errors import ConfigError, ManifestError
from seedbed.graph import Graph, build_graph
from seedbed.store.manifest import Header

if TYPE_CHECKING:
    from pathlib import Path

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=120),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=5), inner, max_size=3),
    max_leaves=6,
)


GRAPH = build_graph([sb.Column("a", list, kind="from_scratch"), sb.Column("b", lambda a: a)])
A, B = {"name": "a"}, {"name": "b"}
BEGUN = {"a": 4, "b": 3}


def header(fingerprint: dict[str, Any], rows: int = 10, columns: tuple[str, ...] = ("a", "b")) -> Header:
    """The header of a directory with two columns, the second of which depends on the first."""
    fingerprint = {"columns": [A, B], **fingerprint}
    return Header(rows=rows, buffer_size=4, columns=columns, fingerprint=fingerprint, created=0.0, version="0")


def check(
    there: Header, here: Header, *, cells: dict[str, int] = BEGUN, graph: Graph = GRAPH, accept_changes: bool = False
) -> Header:
    """The header with which the directory is resumed."""
    progress = Progress(cells=cells, has_begun=bool(cells), has_groups=bool(cells))
    return check_resumable(there, here, graph, progress=lambda: progress, accept_changes=accept_changes)


def refusal(there: dict[str, Any], here: dict[str, Any], rows: int = 10, **options: Any) -> list[str]:
    """The lines of the error that a build gets."""
    with pytest.raises(ManifestError) as raised:
        check(header(there), header(here, rows), **options)
    first, *lines = str(raised.value).split("\n")
    assert first == "the directory belongs to another build and cannot be resumed by this one:"
    if there != here:
        assert "seedbed redo DIR --recipe FILE" in lines.pop()
    return lines


PASSED = "the rows of this dataset have passed its pre-batch processors"
DIGESTS = "m:f (cpython-311-0:1) before, m:f (cpython-311-0:2) now"
OVERWRITE = "for a new dataset in its place, pass --overwrite (overwrite=True)"


@given(json_values, json_values)
def test_only_equal_values_pass(there: Any, here: Any) -> None:
    """Equal recipes are resumed; each difference is reported in a short line."""
    if there == here and json.dumps(there) == json.dumps(here):
        assert check(header({"x": there}), header({"x": here})) == header({"x": there})
    elif there != here:
        lines = refusal({"x": there}, {"x": here})
        assert lines.pop() == OVERWRITE
        assert lines
        assert all(line.startswith("  - x") for line in lines)


class TestWhatIsTold:
    def test_fields_by_their_place(self) -> None:
        """Columns go by name, lists of one length by position; the cells that would differ are counted."""
        there = {"seed": 1, "columns": [{"name": "a", "values": ["x", "y"]}, B]}
        here = {"seed": 2, "columns": [{"name": "a", "values": ["x", "z"]}, B]}
        assert refusal(there, here) == [
            "  - seed: 1 before, 2 now; column 'a' has 4 finished cells, column 'b' has 3 finished cells",
            "  - columns.a.values[1]: 'y' before, 'z' now; column 'a' has 4 finished cells",
            OVERWRITE,
        ]

    def test_models_by_the_columns_that_call_them(self) -> None:
        """A model that only columns without cells call may change."""
        there, here = ({"models": {"m": {"model": name}}, "uses": {"a": [], "b": ["m"]}} for name in "xy")
        assert refusal(there, here)[0] == "  - models.m.model: 'x' before, 'y' now; column 'b' has 3 finished cells"
        assert check(header(there), header(here), cells={"a": 4}).added == {"a": 0, "b": 1}

    def test_long_texts_around_the_first_difference(self) -> None:
        """What comes before and after is left out."""
        there, here = "w" * 200 + " in a friendly tone" + "v" * 200, "w" * 200 + " in an angry tone" + "v" * 200
        line = refusal({"prompt": there}, {"prompt": here})[0].partition(";")[0]
        assert "www in a friendly tonevvv" in line
        assert "www in an angry tonevvv" in line
        assert line.count("…") == 4
        assert len(line) < 220

    def test_fewer_rows(self) -> None:
        """Rows are not taken away."""
        assert refusal({}, {}, rows=9) == [
            "  - the dataset has 10 rows, 9 were requested; a dataset can grow but not shrink",
            OVERWRITE,
        ]

    def test_other_outputs(self) -> None:
        """Code that now makes other columns is reported by them, and cannot be accepted."""
        with pytest.raises(ManifestError, match=r"outputs: \['a'\] before, \['a', 'b'\] now"):
            check(header({}, columns=("a",)), header({}), accept_changes=True)


class TestWhatIsAllowed:
    def test_a_column_without_finished_cells(self) -> None:
        """It is generated by the new recipe; row groups that were written before are written anew."""
        there, here = ({"columns": [A, {"name": "b", "prompt": prompt}]} for prompt in ("p", "q"))
        found = check(header(there), header(here), cells={"a": 4})
        assert (found.edition, found.added) == (1, {"a": 0, "b": 1})
        assert refusal(there, here, cells={"b": 1})[0].endswith("; column 'b' has 1 finished cell")

    def test_a_column_that_finished_ones_depend_on(self) -> None:
        """It counts as generated, even if all of its cells were skipped."""
        there, here = ({"columns": [{"name": "a", "prompt": prompt}, B]} for prompt in ("p", "q"))
        line = refusal(there, here, cells={"b": 2})[0]
        assert line.endswith("'q' now; column 'b', which depends on 'a', has 2 finished cells")

    def test_added_and_removed_columns(self) -> None:
        """Columns come and go; cells of one that comes back, which are still in the journal, do not count."""
        found = check(header({"columns": [A]}, columns=("a",)), header({}), cells={"a": 4})
        assert (found.columns, found.edition, found.added) == (("a", "b"), 1, {"a": 0, "b": 1})
        assert check(header({"columns": [A]}, columns=("a",)), header({})) == found
        alone = build_graph([sb.Column("a", list, kind="from_scratch")])
        found = check(header({}), header({"columns": [A]}, columns=("a",)), graph=alone)
        assert (found.columns, found.edition, found.added) == (("a",), 1, {"a": 0})

    @pytest.mark.parametrize(("stage", "edition"), [("post_batch", 1), ("after_generation", 0)])
    def test_processors_after_the_cells(self, stage: str, edition: int) -> None:
        """They run again, those of row groups over the rows of each."""
        found = check(header({stage: [{"expr": "b > 1"}]}), header({stage: [{"expr": "b > 2"}]}))
        assert (found.edition, found.fingerprint[stage]) == (edition, [{"expr": "b > 2"}])

    def test_processors_before_the_cells(self) -> None:
        """They may change as long as there are no rows."""
        there, here = {"pre_batch": [{"expr": "a > 1"}]}, {"pre_batch": [{"expr": "a > 2"}]}
        assert refusal(there, here) == [
            f"  - pre_batch[0].expr: 'a > 1' before, 'a > 2' now; {PASSED}",
            OVERWRITE,
        ]
        assert check(header(there), header(here), cells={}).fingerprint["pre_batch"] == here["pre_batch"]

    def test_another_order_of_columns(self) -> None:
        """Row groups are written anew in that order."""
        found = check(header({}), header({"columns": [B, A]}, columns=("b", "a")))
        assert (found.columns, found.edition) == (("b", "a"), 1)


CODE = {"code": {"columns.a.function": {"name": "m:f", "digest": "cpython-311-0:1"}}, "data": {}}
EDITED = {"code": {"columns.a.function": {"name": "m:f", "digest": "cpython-311-0:2"}}, "data": {}}


class TestElsewhere:
    def test_changes_are_reported_and_can_be_accepted(self) -> None:
        """The error says how; once accepted, the directory knows the new code."""
        lines = refusal(CODE, EDITED)
        assert lines == [
            f"  - columns.a.function: its code was edited: {DIGESTS}; column 'a' has 4 finished cells",
            "to resume anyway and keep the existing rows, pass --accept-changes (accept_changes=True)",
        ]
        found = check(header(CODE), header(EDITED), accept_changes=True)
        assert (found.fingerprint, found.edition) == (header(EDITED).fingerprint, 0)

    def test_what_cannot_be_accepted(self) -> None:
        """With another difference there is no such way out."""
        lines = refusal({"seed": 1, **CODE}, {"seed": 2, **EDITED}, accept_changes=True)
        assert lines[0].startswith("  - seed: 1 before, 2 now")
        assert len(lines) == 3
        assert lines[-1] == OVERWRITE

    @pytest.mark.parametrize(("resume", "out"), [(False, True), (True, False)])
    @pytest.mark.parametrize("option", ["retry_dropped", "accept_changes"])
    async def test_options_of_a_resume_alone(self, option: str, resume: bool, out: bool, tmp_path: Path) -> None:
        """They are rejected where nothing is resumed."""
        target = tmp_path / "d" if out else None
        options: dict[str, Any] = {"resume": resume, option: True}
        with pytest.raises(ConfigError, match=f"{option} applies to an existing dataset"):
            async with sb.open_build([sb.Column("n", list, kind="from_scratch")], rows=1, out=target, **options):
                pass


def test_growth() -> None:
    """More rows make another header, whose groups follow those that are there."""
    grown = check(header({}), header({}, rows=15))
    assert (grown.rows, grown.segments) == (15, (10,))
    assert replace(grown, rows=10, segments=()) == header({})


class TestRecipes:
    """Whole recipes: what the fingerprint takes in besides the fields."""

    def fingerprint(self, recipe: sb.Recipe, **options: Any) -> dict[str, Any]:
        source = make_source(recipe, **options)
        assert source.fingerprint is not None
        return dict(source.fingerprint())

    def test_a_seed_file_counts_by_its_content(self, tmp_path: Path) -> None:
        """A file may be moved, but not edited; a pattern may name several."""
        (tmp_path / "a.csv").write_text("x\n1\n")
        recipe = sb.Recipe(columns=[sb.Seed("s", path=tmp_path / "a.csv")])
        before = self.fingerprint(recipe)
        (tmp_path / "a.csv").rename(tmp_path / "b.csv")
        moved = sb.Recipe(columns=[sb.Seed("s", path="b.csv")], base=tmp_path)
        assert self.fingerprint(moved) == before
        (tmp_path / "b.csv").write_text("x\n2\n")
        edited = self.fingerprint(moved)
        assert list(edited["data"]) == ["columns.s.path"]
        assert {**edited, "data": {}} == {**before, "data": {}}
        assert edited["data"] != before["data"]
        (tmp_path / "c.csv").write_text("x\n3\n")
        several = self.fingerprint(sb.Recipe(columns=[sb.Seed("s", path="*.csv")], base=tmp_path))
        assert several["data"]["columns.s.path"].startswith("2 files, 8 bytes")

    def test_a_seed_file_far_away(self) -> None:
        """Behind a URL it counts in the same way."""
        fsspec = pytest.importorskip("fsspec")
        memory = fsspec.filesystem("memory")
        memory.pipe("/guard/a.csv", b"x\n1\n")
        recipe = sb.Recipe(columns=[sb.Seed("s", path="memory://guard/a.csv")])
        before = self.fingerprint(recipe)["data"]
        memory.pipe("/guard/a.csv", b"x\n2\n")
        assert self.fingerprint(recipe)["data"] != before
        assert before["columns.s.path"].startswith("1 file, 4 bytes")

    def test_a_frame_counts_by_its_rows(self) -> None:
        """It has no file."""
        one, other = (sb.Recipe(columns=[sb.Seed("s", frame=pl.DataFrame({"x": [x]}))]) for x in (1, 2))
        assert self.fingerprint(one)["data"] == {}
        assert self.fingerprint(one) != self.fingerprint(other)

    def test_a_schema_counts_by_what_it_says(self, tmp_path: Path) -> None:
        """Written down, in a file or of a class: it is the same column, and an edit of the file is another one."""
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        (tmp_path / "s.json").write_text(json.dumps(schema))

        class Told:
            @classmethod
            def model_json_schema(cls, **_: str) -> dict[str, Any]:
                return schema

            @classmethod
            def model_validate(cls, value: Any) -> Any:
                return value

        def recipe(given: Any) -> sb.Recipe:
            column = sb.LLMStructured("a", model="m", prompt="p", schema=given)
            return sb.Recipe(columns=[column], models={"m": sb.Scripted()}, base=tmp_path)

        columns = [self.fingerprint(recipe(given))["columns"] for given in (schema, "s.json", Told)]
        assert columns[0] == columns[1] == columns[2]
        assert columns[0][0]["schema"] == schema
        assert "columns.a.schema" in self.fingerprint(recipe(Told))["code"]
        (tmp_path / "s.json").write_text(json.dumps({**schema, "required": []}))
        assert self.fingerprint(recipe("s.json"))["columns"] != columns[0]

    def test_functions_of_files_count_as_those_of_python(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A recipe written in Python is resumed by the file that is stored of it; its code is reported by digest."""
        (tmp_path / "guarded.py").write_text(
            "import seedbed as sb\n\n@sb.column\ndef twice(n: int) -> int:\n    return n * 2\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        import guarded  # noqa: PLC0415

        number = sb.Category("n", values=[1, 2])
        written = sb.Recipe(columns=[number, guarded.twice])
        named = sb.Recipe(columns=[number, sb.Custom("twice", "guarded:twice")], base=tmp_path)
        code = self.fingerprint(written)["code"]["columns.twice.function"]
        assert code["name"] == "guarded:twice"
        assert "digest" in code
        assert self.fingerprint(named) == self.fingerprint(written)

    def test_processors_that_are_given_beside_the_recipe(self) -> None:
        """They count too."""
        recipe = sb.Recipe(columns=[sb.Category("n", values=[1, 2])])
        processor = sb.Processor(stage="post_batch", apply=lambda frame: frame, name="same")
        found = self.fingerprint(recipe, processors=[processor])
        assert found["post_batch"] == [{"name": "same"}]
        assert "post_batch[0].apply" in found["code"]

    def test_unused_models_may_change(self) -> None:
        """They may come and go."""
        column = sb.LLMText("a", model="m", prompt="p")
        one = sb.Recipe(columns=[column], models={"m": sb.Scripted()})
        more = sb.Recipe(columns=[column], models={"m": sb.Scripted(), "n": sb.Scripted(model="other")})
        assert self.fingerprint(one) == self.fingerprint(more)
