"""Bad input: one clear error before anything runs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio
from engine_helpers import seed

from seedbed import (
    BuildReport,
    Column,
    ConfigError,
    DatasetGenerationError,
    KeyLimits,
    OutputDirectoryError,
    Processor,
    RunConfig,
    build,
    build_async,
    open_build,
    preview,
    resume,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Untouched:
    """Columns that must not be called, and a directory that must not be made."""

    def __init__(self, directory: Path) -> None:
        self.called: list[str] = []
        self.out = directory / "data"

    def seed(self, name: str = "n", **options: Any) -> Column:
        """A column from scratch."""

        def numbers(rows: range) -> list[int]:
            self.called.append(name)
            return list(rows)

        return Column(name, numbers, kind="from_scratch", **options)

    def cell(self, name: str = "v", **options: Any) -> Column:
        """A cell column of `n`."""

        def fill(n: int) -> int:
            self.called.append(name)
            return n

        return Column(name, fill, **options)

    def problems(self, *columns: Any, **options: Any) -> tuple[str, ...]:
        """What building these says, by every way in; nothing may have run or been written."""
        found: list[tuple[str, ...]] = []

        async def in_trio() -> None:
            await build_async(list(columns), rows=2, out=self.out, **options)

        async def opened() -> None:
            async with open_build(list(columns), rows=2, out=self.out, **options) as running:
                await running.wait()

        ways: list[Callable[[], object]] = [
            lambda: build(list(columns), rows=2, out=self.out, **options),
            lambda: trio.run(in_trio),
            lambda: trio.run(opened),
            lambda: preview(list(columns), rows=2, **options),
        ]
        for way in ways:
            with pytest.raises(DatasetGenerationError) as raised:
                way()
            found.append(raised.value.problems)
        assert found.count(found[0]) == len(ways)
        self.check()
        return found[0]

    def check(self) -> None:
        """Nothing ran and nothing is there."""
        assert self.called == []
        assert not self.out.exists()


@pytest.fixture
def untouched(tmp_path: Path) -> Untouched:
    """See `Untouched`."""
    return Untouched(tmp_path)


class TestRows:
    @pytest.mark.parametrize(
        ("rows", "count"), [(3.0, 3), ("3", 3), ("0.003k", 3), ("3e0", 3), (np.int64(3), 3), (0, 0)]
    )
    def test_a_number_of_rows_has_the_forms_of_the_command_line(self, rows: Any, count: int, tmp_path: Path) -> None:
        """1e6 and "100k" are numbers of rows in Python too."""
        columns = [Column("x", lambda: 1)]
        assert build(columns, rows=rows, out=tmp_path / "out").rows == count
        assert resume(tmp_path / "out", columns, rows=rows).rows == count
        assert preview(columns, rows=rows).report.requested == count

    @pytest.mark.parametrize("rows", [-1, 1.5, "-3", "many", "1e999999999", float("nan"), float("inf"), True, [3]])
    def test_rows_are_a_whole_number(self, untouched: Untouched, rows: Any) -> None:
        """Anything else is an error in every way in."""
        text = re.escape(f"rows must be a number of rows, 0 or more, such as 1000, 1e6 or 100k, not {rows!r}")
        with pytest.raises(ConfigError, match=text):
            build([untouched.seed()], rows=rows, out=untouched.out)
        with pytest.raises(ConfigError, match=text):
            preview([untouched.seed()], rows=rows)
        untouched.check()

    def test_rows_must_be_given(self, untouched: Untouched) -> None:
        """A new dataset has no number of rows by itself."""
        with pytest.raises(ConfigError, match=r"the number of rows is missing: pass rows \(-n\)"):
            build([untouched.seed()], rows=None, out=untouched.out)
        untouched.check()


COUNTS = (
    "buffer_size",
    "max_concurrent_row_groups",
    "max_submitted_tasks",
    "max_active_tasks",
    "max_parallel_requests",
    "max_processes",
    "shutdown_error_window",
    "commit_count",
)


class TestOptions:
    @pytest.mark.parametrize("option", COUNTS)
    def test_sizes_are_at_least_one(self, option: str) -> None:
        """Zero and negative sizes are refused by name."""
        for value in (0, -1):
            with pytest.raises(ConfigError, match=f"{option} must be a whole number, 1 or more, not {value}"):
                RunConfig(**{option: value})

    @pytest.mark.parametrize("option", [*COUNTS, "salvage_max_rounds", "max_tokens"])
    @pytest.mark.parametrize("value", [1.5, "2", True])
    def test_sizes_are_whole_numbers(self, option: str, value: Any) -> None:
        """A float, a text or a bool is not a size."""
        least = 1 if option in COUNTS else 0
        with pytest.raises(ConfigError, match=f"^{option} must be a whole number, {least} or more, not {value!r}$"):
            RunConfig(**{option: value})

    @pytest.mark.parametrize("option", ["salvage_max_rounds", "max_tokens"])
    def test_some_may_be_zero(self, option: str) -> None:
        """No retries, no tokens: both can be meant."""
        assert getattr(RunConfig(**{option: 0}), option) == 0
        with pytest.raises(ConfigError, match=f"{option} must be a whole number, 0 or more, not -1"):
            RunConfig(**{option: -1})

    @pytest.mark.parametrize("option", ["cell_timeout", "deadline", "backoff_base", "backoff_max"])
    def test_times_are_above_zero(self, option: str) -> None:
        """A time of nothing would end everything at once."""
        for value in (0, -1.0, math.inf):
            with pytest.raises(ConfigError, match=f"{option} must be a number above 0, not {value!r}"):
                RunConfig(**{option: value})

    @pytest.mark.parametrize("option", ["throttle_patience", "grace", "max_cost", "commit_interval"])
    def test_some_times_may_be_zero(self, option: str) -> None:
        """No patience and no grace can be meant; less than none cannot."""
        assert getattr(RunConfig(**{option: 0}), option) == 0
        with pytest.raises(ConfigError, match=f"{option} must be a number, 0 or more, not -1"):
            RunConfig(**{option: -1})

    @pytest.mark.parametrize(
        ("option", "expected"),
        [
            ("cell_timeout", "a number above 0"),
            ("grace", "a number, 0 or more"),
            ("shutdown_error_rate", "a number above 0 and at most 1"),
            ("max_cost", "a number, 0 or more"),
        ],
    )
    @pytest.mark.parametrize("value", ["1", True, math.nan])
    def test_times_and_rates_are_numbers(self, option: str, expected: str, value: Any) -> None:
        """A text, a bool and what is no number are refused."""
        with pytest.raises(ConfigError, match=f"^{option} must be {expected}, not {value!r}$"):
            RunConfig(**{option: value})

    @pytest.mark.parametrize("option", ["shutdown_error_rate", "salvage_error_threshold"])
    @pytest.mark.parametrize("value", [0, -0.1, 1.1])
    def test_rates_are_shares(self, option: str, value: float) -> None:
        """Above nothing and at most all."""
        with pytest.raises(ConfigError, match=f"{option} must be a number above 0 and at most 1, not {value!r}"):
            RunConfig(**{option: value})

    def test_choices_are_listed(self) -> None:
        """What is allowed is in the message."""
        with pytest.raises(ConfigError, match="engine must be 'concurrent' or 'sequential', not 'parallel'"):
            RunConfig(engine="parallel")
        with pytest.raises(ConfigError, match="durability must be 'cell' or 'row_group', not 'none'"):
            RunConfig(durability="none")

    @pytest.mark.parametrize(
        ("option", "value", "text"),
        [
            ("trace", "yes", "trace must be True or False, not 'yes'"),
            ("jitter_seed", "x", "jitter_seed must be a whole number, not 'x'"),
        ],
    )
    def test_the_rest_is_checked_too(self, option: str, value: Any, text: str) -> None:
        """Every option has an error of the same kind."""
        with pytest.raises(ConfigError, match=text):
            RunConfig(**{option: value})

    def test_an_unknown_option_has_a_nearest_one(self) -> None:
        """From a file, all unknown ones are named at once."""
        with pytest.raises(ConfigError) as raised:
            RunConfig.from_mapping({"bufer_size": 3, "grace": 1, "max_token": 7})
        assert str(raised.value) == (
            "unknown option 'bufer_size'; did you mean 'buffer_size'?; "
            "unknown option 'max_token'; did you mean 'max_tokens'?"
        )
        assert RunConfig.from_mapping({"grace": 1, "buffer_size": 3}) == RunConfig(grace=1, buffer_size=3)

    def test_an_unknown_keyword_is_a_type_error(self) -> None:
        """In Python it is a keyword that does not exist."""
        with pytest.raises(TypeError, match="bufer_size"):
            RunConfig(bufer_size=3)

    def test_a_config_that_is_none_of_ours(self, untouched: Untouched) -> None:
        """A mapping in place of a RunConfig is answered in words."""
        with pytest.raises(ConfigError, match=r"config must be a RunConfig, not .*; see RunConfig\.from_mapping"):
            build([untouched.seed()], rows=1, out=untouched.out, config={"grace": 1})  # type: ignore[arg-type]
        untouched.check()

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"max_parallel_requests": 0}, "max_parallel_requests must be a whole number, 1 or more, not 0"),
            ({"max_parallel_requests": 2.0}, r"max_parallel_requests must be a whole number, 1 or more, not 2\.0"),
            ({"requests_per_minute": 0}, "requests_per_minute must be None for no limit, or a number above 0, not 0"),
            ({"tokens_per_minute": -5}, "tokens_per_minute must be None for no limit, or a number above 0, not -5"),
            ({"latency_congestion": 1}, "latency_congestion must be True or False, not 1"),
        ],
    )
    def test_limits_of_a_key(self, options: dict[str, Any], text: str) -> None:
        """They are checked when they are made."""
        with pytest.raises(ConfigError, match=text):
            KeyLimits(**options)


class TestColumns:
    def test_a_column_named_twice(self, untouched: Untouched) -> None:
        """It is said once."""
        assert untouched.problems(untouched.seed(), untouched.cell(), untouched.cell()) == ("duplicate column 'v'",)

    def test_a_function_with_an_unknown_parameter_is_reported(self, untouched: Untouched) -> None:
        """The nearest column is named."""

        def fill(nn: int) -> int:
            raise AssertionError

        assert untouched.problems(untouched.seed("n1"), Column("v", fill)) == (
            "column 'v' requires 'nn', which no column generates; did you mean 'n1'?",
        )

    def test_no_columns(self, untouched: Untouched) -> None:
        """There is nothing to build."""
        assert untouched.problems() == ("a build needs at least one column",)

    def test_things_that_are_no_columns(self, untouched: Untouched) -> None:
        """A function is not a column yet, nor is a frame function a processor."""
        assert untouched.problems(untouched.seed(), "v", processors=[3]) == (
            "'v' is not a Column",
            "3 is not a Processor",
        )

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"tokens": -1}, "column 'v' has tokens=-1; it must be a whole number, 0 or more"),
            ({"tokens": 1.5}, "column 'v' has tokens=1.5; it must be a whole number, 0 or more"),
            ({"timeout": 0}, "column 'v' has timeout=0; it must be a number of seconds above 0"),
            ({"timeout": "1"}, "column 'v' has timeout='1'; it must be a number of seconds above 0"),
            ({"timeout": math.nan}, "column 'v' has timeout=nan; it must be a number of seconds above 0"),
            ({"key": ""}, "column 'v' has a key that is not text: ''"),
            ({"key": 3}, "column 'v' has a key that is not text: 3"),
            ({"outputs": []}, "column 'v' has no outputs"),
            ({"retry_on": [3]}, "column 'v' has something in retry_on that is no exception class"),
            ({"retry_on": [BaseException]}, "column 'v' has something in retry_on that is no exception class"),
            ({"dtype": {"w": int}}, "column 'v' declares a type for 'w', which is not an output of it"),
        ],
    )
    def test_options_are_checked(self, untouched: Untouched, options: dict[str, Any], text: str) -> None:
        """Each has a sentence that names the column, what was found and what is allowed."""
        assert untouched.problems(untouched.seed(), untouched.cell(**options)) == (text,)

    def test_a_type_that_is_none(self, untouched: Untouched) -> None:
        """A declared type must be one that the store knows."""
        (text,) = untouched.problems(untouched.seed(), untouched.cell(dtype="whole number"))
        assert text.startswith("column 'v': ")
        assert "'whole number'" in text

    @pytest.mark.parametrize("name", ["", 3, None])
    def test_names_are_text(self, untouched: Untouched, name: Any) -> None:
        """A column without a name cannot be written."""
        assert f"a column's name must be text, not {name!r}" in untouched.problems(
            untouched.seed(), untouched.cell(name=name)
        )

    def test_limits_of_an_unused_key_are_reported(self, untouched: Untouched) -> None:
        """They would do nothing, so they are a mistake; the nearest key is named."""
        assert untouched.problems(
            untouched.seed(), untouched.cell(key="openai/small"), limits={"openai/smal": KeyLimits()}
        ) == ("limits are given for key 'openai/smal', which no column uses; did you mean 'openai/small'?",)

    def test_limits_that_are_none(self, untouched: Untouched) -> None:
        """A number in place of limits is refused."""
        assert untouched.problems(untouched.seed(), untouched.cell(key="k"), limits={"k": 3}) == (
            "the limits of key 'k' are not KeyLimits",
        )

    def test_all_at_once(self, untouched: Untouched) -> None:
        """Problems of columns, keys and processors come in one error."""
        found = untouched.problems(
            untouched.cell(tokens=-1),
            untouched.cell(name="w", timeout=-1),
            Column("x", 3),
            untouched.cell(name="y", allow_resize=True),
            limits={"k": KeyLimits()},
            processors=[Processor(stage="pre_batch", apply=len)],
        )
        text = "\n".join(found)
        for part in (
            "has 3 as its generator",
            "requires 'n', which no column generates",
            "column 'y' has allow_resize=True",
            "tokens=-1",
            "timeout=-1",
            "limits are given for key 'k', which no column uses",
            "a pre-batch processor needs a column from scratch",
        ):
            assert part in text, part


class TestDirectory:
    def refused(self, untouched: Untouched, out: Path) -> str:
        """What building into that place says."""
        with pytest.raises(OutputDirectoryError) as raised:
            build([untouched.seed()], rows=2, out=out)
        assert untouched.called == []
        return str(raised.value)

    def test_not_empty(self, untouched: Untouched, tmp_path: Path) -> None:
        """What is there is named and stays as it is."""
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "other.txt").write_text("mine too")
        assert self.refused(untouched, tmp_path) == (
            f"the output directory {str(tmp_path)!r} is not empty, it holds 'notes.txt' and 1 more: "
            "pass a new directory or an empty one"
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "other.txt"]

    def test_used_by_another_build(self, untouched: Untouched, tmp_path: Path) -> None:
        """A dataset is not written over."""
        build([seed()], rows=1, out=tmp_path / "data")
        before = sorted(path.name for path in (tmp_path / "data").iterdir())
        assert "; nothing was changed" in self.refused(untouched, tmp_path / "data")
        assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before

    def test_a_file(self, untouched: Untouched, tmp_path: Path) -> None:
        """A file is not a directory, nor can one be made below it."""
        (tmp_path / "file").write_text("x")
        assert self.refused(untouched, tmp_path / "file") == (
            f"the output {str(tmp_path / 'file')!r} is a file: pass a new directory"
        )
        text = self.refused(untouched, tmp_path / "file" / "below" / "it")
        assert str(tmp_path / "file" / "below" / "it") in text
        assert (tmp_path / "file").read_text() == "x"

    def test_not_writable(self, untouched: Untouched) -> None:
        """A place where nobody may write says so, for root too: the kernel's own directory takes no files."""
        text = self.refused(untouched, Path("/proc/data"))
        assert text.startswith("the output directory '/proc/data' is not writable: ")

    def test_columns_are_checked_first(self, untouched: Untouched, tmp_path: Path) -> None:
        """A build that could not run does not even look at the directory."""
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(DatasetGenerationError):
            build([], rows=1, out=tmp_path)

    def test_an_empty_directory_is_fine(self, tmp_path: Path) -> None:
        """So is one that must be made, with its parents; text will do for a path."""
        assert build([seed()], rows=2, out=tmp_path).rows == 2
        assert build([seed()], rows=2, out=str(tmp_path.parent / f"{tmp_path.name}-new" / "deep")).rows == 2


def test_a_report_prints_its_counts() -> None:
    """In one line: rows, drops and what is unfinished."""
    report = preview([seed()], rows=3).report
    assert isinstance(report, BuildReport)
    assert str(report).startswith("3 of 3 rows, ")


def test_an_unknown_option_of_a_build_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    """Options are read by name: a misspelled one is never ignored."""
    with pytest.raises(TypeError, match=r"unknown option of a build: 'retry_droped'.*retry_dropped"):
        build([], rows=1, out=tmp_path / "out", retry_droped=True)
    assert not (tmp_path / "out").exists()
