"""What a build does where descriptors or memory run out, where polars panics, and in a script without a guard."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

import seedbed as sb
from seedbed.cli.exit_codes import ExitCode, exit_code
from seedbed.errors import is_out_of_memory
from seedbed.testing import serve_openai_sync

if TYPE_CHECKING:
    from pathlib import Path


class PanicException(BaseException):
    """What a panic of Rust code is in Python: no Exception, and of no module that could be imported."""


def run_script(path: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script of a user, run as a file."""
    path.write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("descriptors", [20, 24, 40])
def test_few_file_descriptors_cost_no_call(tmp_path: Path, descriptors: int) -> None:
    """With as few descriptors as a build can start with, every row is written and every prompt is sent once."""
    script = """
        import resource, sys
        import seedbed as sb

        url, out, descriptors = sys.argv[1:]
        recipe = sb.Recipe(
            columns=[sb.UUID("n"), sb.LLMText("answer", prompt="{{ n }}", model="m")],
            models={"m": sb.OpenAICompatible(base_url=url, model="m", max_parallel_requests=32)},
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        report = sb.build(recipe, rows=100, out=out, config=sb.RunConfig(salvage_max_rounds=0)).report
        print(report.written, len(report.dropped), sum(report.errors.values()))
    """
    with serve_openai_sync(latency=0.005) as server:
        done = run_script(tmp_path / "script.py", script, server.url, str(tmp_path / "out"), str(descriptors))
        assert (done.stdout.split(), done.stderr) == (["100", "0", "0"], "")
        assert server.statistics.requests == len(server.statistics.prompts) == 100


SCRIPT = """
    import sys
    import seedbed as sb

    def n(rows: range) -> list[int]:
        return list(rows)

    def double(n: int) -> int:
        return 2 * n

    def main() -> None:
        print("builds", flush=True)
        columns = [sb.Column("n", n, kind="from_scratch"), sb.Column("double", double, process=True)]
        print(sb.build(columns, rows=4, out=sys.argv[1]).to_polars()["double"].to_list())

"""


@pytest.mark.parametrize("before", ["", 'if __name__ == "__main__":\n        pass\n    '])
def test_a_script_without_a_guard_is_rejected_before_anything_is_written(tmp_path: Path, before: str) -> None:
    """`process=True` in a script that builds at its top level ends in one sentence, and no process is started."""
    done = run_script(tmp_path / "script.py", f"{SCRIPT}\n    {before}main()\n", str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stdout == "builds\n"
    assert done.stderr.splitlines()[-1] == (
        "seedbed.errors.ConfigError: a column with process=True starts processes that import this script again: "
        'put the call that builds under `if __name__ == "__main__":`'
    )
    assert done.stderr.count("import this script again") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("guard", ['if __name__ == "__main__":', 'if sys.argv and __name__ == "__main__":'])
def test_a_script_with_a_guard_builds_once(tmp_path: Path, guard: str) -> None:
    """A script that builds under a guard runs its columns in processes that do not build again."""
    done = run_script(tmp_path / "script.py", f"{SCRIPT}\n    {guard}\n        main()\n", str(tmp_path / "out"))
    assert (done.stdout, done.stderr) == ("builds\n[0, 2, 4, 6]\n", "")


def test_a_worker_that_imports_an_unguarded_script_does_not_build(tmp_path: Path) -> None:
    """A guard that lets everything through leaves it to the new process, which refuses instead of building again."""
    unguarded = f'{SCRIPT}\n    if __name__ != "other":\n        main()\n'.replace("rows=4", "rows=1")
    done = run_script(tmp_path / "script.py", unguarded, str(tmp_path / "out"))
    assert "put the call that builds under" in done.stderr
    assert "bootstrapping phase" not in done.stderr


def number(rows: range) -> list[int]:
    """Rows from scratch."""
    return list(rows)


def test_memory_that_runs_out_in_a_column_drops_no_row(tmp_path: Path) -> None:
    """A MemoryError stops the run in one sentence that names the column; a resume ends with every row, none twice."""
    called: list[int] = []
    fails = True

    def answer(n: int) -> int:
        if n == 5 and fails:
            raise MemoryError
        called.append(n)
        return n

    columns = [sb.Column("n", number, kind="from_scratch"), sb.Column("answer", answer)]
    with pytest.raises(sb.BuildStopped, match=r"^column 'answer': memory ran out; finished cells are stored") as caught:
        sb.build(columns, rows=8, out=tmp_path / "out")
    assert caught.value.report is not None
    assert caught.value.report.dropped == ()
    assert exit_code(caught.value) is ExitCode.STOPPED
    fails = False
    dataset = sb.resume(tmp_path / "out", columns)
    assert dataset.to_polars()["answer"].to_list() == list(range(8))
    assert sorted(called) == list(range(8))


def die(n: int) -> int:
    """A worker that the system kills, as it does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return n


def test_a_worker_that_the_system_kills_drops_no_row(tmp_path: Path) -> None:
    """A worker process that is killed from outside stops the run in one sentence, with its rows unfinished."""
    columns = [sb.Column("n", number, kind="from_scratch"), sb.Column("dies", die, process=True)]
    with pytest.raises(sb.BuildStopped, match=r"^column 'dies': memory ran out \(its process was killed") as caught:
        sb.build(columns, rows=3, out=tmp_path / "out")
    assert caught.value.report is not None
    assert (caught.value.report.dropped, caught.value.report.unfinished) == ((), (range(3),))


def test_memory_that_runs_out_before_the_build_is_one_sentence(tmp_path: Path) -> None:
    """Where libraries or threads find no room, however they say so, the command says that memory ran out."""
    script = """
        import resource, sys
        from seedbed.cli import main
        import polars  # which only warns where its library cannot be loaded

        resource.setrlimit(resource.RLIMIT_STACK, (64 << 20, -1))  # each thread reserves so much
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (60 << 20), -1))
        sys.exit(main(["run", sys.argv[1], "-n", "4", "-o", sys.argv[2], "--progress", "none"]))
    """
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("columns:\n  - {name: n, type: uuid}\n", encoding="utf-8")
    done = run_script(tmp_path / "script.py", script, str(recipe), str(tmp_path / "out"))
    assert done.stderr.splitlines()[0].startswith("seedbed: memory ran out")
    assert done.returncode == ExitCode.STOPPED


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ImportError("_duckdb.so: failed to map segment from shared object"), True),
        (ImportError("No module named 'duckdb'"), False),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("the loop is closed"), False),
    ],
)
def test_out_of_memory_is_known_by_its_words(error: Exception, found: bool) -> None:
    """Memory that ran out is distinguished from every other failure of the same type."""
    assert is_out_of_memory(error) is found


@pytest.mark.parametrize("raised", [PanicException("index out of bounds\nnote: run with"), MemoryError()])
def test_a_panic_at_a_checkpoint_leaves_a_directory_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    """Where a part cannot be written because polars panicked or memory ran out, no answer is sent again."""
    called: list[int] = []

    def answer(n: int) -> int:
        called.append(n)
        return n

    def broken(*_: Any, **__: Any) -> Any:
        raise raised

    columns = [sb.Column("n", number, kind="from_scratch"), sb.Column("answer", answer)]
    with monkeypatch.context() as patch:
        patch.setattr("seedbed.store.writer.DatasetWriter.write_group", broken)
        with pytest.raises(sb.BuildStopped, match=r"polars failed internally \(index out of|memory ran out;") as caught:
            sb.build(columns, rows=4, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert exit_code(caught.value) is ExitCode.STOPPED
    assert sb.resume(tmp_path / "out", columns).to_polars()["answer"].to_list() == list(range(4))
    assert sorted(called) == list(range(4))


def test_a_panic_in_a_cell_drops_its_row(tmp_path: Path) -> None:
    """A panic in a function of a user is a failure of that cell, and the others are written."""

    def answer(n: int) -> int:
        if n == 2:
            raise PanicException("index out of bounds")
        return n

    columns = [sb.Column("n", number, kind="from_scratch"), sb.Column("answer", answer)]
    report = sb.build(columns, rows=4, out=tmp_path / "out").report
    assert report is not None
    assert [drop.error for drop in report.dropped] == ["PanicException: index out of bounds"]
    assert report.written == 3
