from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from plan_helpers import ids, node
from serving import document, taking, write

from seedbed.errors import ConfigError
from seedbed.plans.digest import plan_digest
from seedbed.plans.serve import PlanService, ServeConfig, rollback
from seedbed.plans.serve.catalog import STATE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# The tests look at the directory when they want.
NEVER = ServeConfig(poll=1_000)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[PlanService]:
    """A service that looks at its directory only when a test says so."""
    service = PlanService(directory, config=NEVER)
    async with service.open():
        yield service


async def look(service: PlanService) -> None:
    """Let a service look at its directory."""
    await service.catalog.refresh(service.engine)


async def answered(service: PlanService, name: str = "simple") -> list[int]:
    """The ids that the active version of a plan answers."""
    version = service.catalog.find(name)
    assert version is not None
    return ids(await service.engine.execute(version.plan, {"user_id": 1}))


async def test_a_changed_file_is_taken_over(tmp_path: Path) -> None:
    """The new version answers after the next look; the old one is still there by its digest."""
    file = tmp_path / "simple.json"
    write(file, taking(3))
    async with serving(tmp_path) as service:
        assert await answered(service) == [1, 2, 3]
        write(file, taking(2))
        assert await answered(service) == [1, 2, 3]
        await look(service)
        assert await answered(service) == [1, 2]
        old = service.catalog.find(f"simple@{plan_digest(taking(3))[:10]}")
        assert old is not None
        assert ids(await service.engine.execute(old.plan, {"user_id": 1})) == [1, 2, 3]
        assert service.catalog.find("simple@00") is None
        assert service.catalog.reloads == 1


async def test_requests_in_progress_finish_on_the_version_that_they_began(tmp_path: Path) -> None:
    """A request that runs while its plan is replaced is answered by the old version."""
    slow = document(
        "simple", node("s", "test::fixed_source", row_count=4), node("w", "test::sleep", "s", duration_ms=200)
    )
    write(tmp_path / "simple.json", slow)
    async with serving(tmp_path) as service:
        found: list[list[int]] = []

        async def ask() -> None:
            found.append(await answered(service))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not service.engine.statistics().running:
                await trio.lowlevel.checkpoint()
            write(tmp_path / "simple.json", taking(1))
            await look(service)
            assert await answered(service) == [1]
            assert not found
        assert found == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "INVALID_JSON"),
        ("[]", "WRONG_TYPE"),
        (json.dumps(document("simple", node("a", "core::tke", count=1))), "UNKNOWN_OP"),
        (json.dumps(document("simple", node("v", "core::viewer", endpoint="ep_9"))), "UNKNOWN_ENDPOINT"),
    ],
)
async def test_a_bad_file_leaves_the_good_plan(tmp_path: Path, content: str, problem: str) -> None:
    """A file with problems changes nothing; they are listed until it is mended."""
    file = tmp_path / "simple.json"
    write(file, taking(3))
    write(tmp_path / "other.json", taking(1, "other"))
    async with serving(tmp_path) as service:
        write(file, content)
        await look(service)
        assert await answered(service) == [1, 2, 3]
        assert await answered(service, "other") == [1]
        assert [code for code, _, _ in service.catalog.problems["simple.json"]] == [problem]
        await look(service)
        assert service.catalog.failures == 1
        write(file, taking(2))
        await look(service)
        assert await answered(service) == [1, 2]
        assert not service.catalog.problems


async def test_a_version_becomes_active_only_after_its_warm_up_requests(tmp_path: Path) -> None:
    """Warm-up requests are sent before; if one fails the version before it stays."""
    file = tmp_path / "simple.json"
    write(file, taking(3))
    write(tmp_path / "simple.warmup.json", [{"user_id": 1}, {"user_id": 2}])
    failing = document(
        "simple",
        node("s", "test::fixed_source"),
        node("f", "test::sleep", "s", duration_ms=0, fail_after_sleep=True),
    )
    async with serving(tmp_path) as service:
        assert service.engine.statistics().outcomes == {"OK": 2}
        write(file, failing)
        await look(service)
        assert await answered(service) == [1, 2, 3]
        ((code, path, message),) = service.catalog.problems["simple.json"]
        assert (code, path) == ("NODE_FAILED", "$[0]")
        assert message.startswith("warm-up request 0 failed: node 'f'")
        write(tmp_path / "simple.warmup.json", [{"user": 1}])
        write(file, taking(2))
        await look(service)
        assert service.catalog.problems["simple.json"][0][0] == "INVALID_REQUEST"
        write(tmp_path / "simple.warmup.json", "{")
        await look(service)
        assert service.catalog.problems["simple.json"][0][0] == "INVALID_JSON"
        (tmp_path / "simple.warmup.json").unlink()
        await look(service)
        assert await answered(service) == [1, 2]


async def test_two_files_cannot_hold_one_plan(tmp_path: Path) -> None:
    """The first keeps the name; the other is a problem that names it."""
    write(tmp_path / "a.json", taking(1))
    write(tmp_path / "b.json", taking(2))
    async with serving(tmp_path) as service:
        assert await answered(service) == [1]
        assert "is taken by a.json" in service.catalog.problems["b.json"][0][2]
        (tmp_path / "a.json").unlink()
        await look(service)
        write(tmp_path / "b.json", taking(4))
        await look(service)
        assert await answered(service) == [1, 2, 3, 4]


async def test_a_plan_follows_its_file(tmp_path: Path) -> None:
    """A file that is renamed serves on; one that holds another plan now does not serve the old one."""
    write(tmp_path / "a.json", taking(1))
    async with serving(tmp_path) as service:
        (tmp_path / "a.json").rename(tmp_path / "b.json")
        await look(service)
        assert await answered(service) == [1]
        write(tmp_path / "b.json", taking(2, "other"))
        await look(service)
        assert service.catalog.find("simple") is None
        assert await answered(service, "other") == [1, 2]


async def test_a_document_that_breaks_its_reader_is_a_problem(tmp_path: Path) -> None:
    """However deep it is, the others are served."""
    write(tmp_path / "simple.json", taking(1))
    write(tmp_path / "deep.json", '{"plan_name": ' + "[" * 900 + "]" * 900 + "}")
    async with serving(tmp_path) as service:
        assert await answered(service) == [1]
        assert list(service.catalog.problems) == ["deep.json"]


async def test_a_removed_file_is_not_served_any_more(tmp_path: Path) -> None:
    """Its plan is unknown after the next look; a directory that is gone changes nothing."""
    (tmp_path / "plans").mkdir()
    write(tmp_path / "plans" / "x.json", taking(1))
    async with serving(tmp_path / "plans") as service:
        (tmp_path / "plans").rename(tmp_path / "moved")
        await look(service)
        assert await answered(service) == [1]
        assert "cannot be read" in service.catalog.problems["."][0][2]
        (tmp_path / "moved").rename(tmp_path / "plans")
        (tmp_path / "plans" / "x.json").unlink()
        await look(service)
        assert service.catalog.find("simple") is None
        assert not service.catalog.problems


async def test_rollback_reaches_all_services_and_ends_with_the_next_change(tmp_path: Path) -> None:
    """Every service of a directory follows, also one that starts later; a new version of the file is taken over."""
    file = tmp_path / "simple.json"
    write(file, taking(3))
    async with serving(tmp_path) as one, serving(tmp_path) as other:
        write(file, taking(2))
        await look(one)
        await look(other)
        bad, good = plan_digest(taking(2)), plan_digest(taking(3))
        assert rollback(tmp_path, "simple") == (bad, good)
        await look(one)
        await look(other)
        assert await answered(one) == await answered(other) == [1, 2, 3]
        async with serving(tmp_path) as late:
            assert await answered(late) == [1, 2, 3]
        assert rollback(tmp_path, "simple", bad[:8]) == (good, bad)
        await look(one)
        assert await answered(one) == [1, 2]
        assert rollback(tmp_path, "simple") == (bad, good)
        write(file, taking(5))
        await look(one)
        assert await answered(one) == [1, 2, 3, 4, 5]


async def test_a_version_that_failed_is_never_the_target_of_a_rollback(tmp_path: Path) -> None:
    """Only versions that were active are stored."""
    file = tmp_path / "simple.json"
    for count in (3, 2):
        write(file, taking(count))
        async with serving(tmp_path):
            pass
    write(file, document("simple", node("a", "core::tke", count=1)))
    async with serving(tmp_path) as service:
        assert service.catalog.find("simple") is None
        _, after = rollback(tmp_path, "simple")
        assert after == plan_digest(taking(2))
        await look(service)
        assert await answered(service) == [1, 2]


def test_what_cannot_be_rolled_back_is_named(tmp_path: Path) -> None:
    """Errors name the plan, the directory, and the versions that there are."""
    with pytest.raises(ConfigError, match=r"no file of .* holds a plan 'simple'"):
        rollback(tmp_path, "simple")
    write(tmp_path / "simple.json", taking(3))
    with pytest.raises(ConfigError, match=r"no earlier version \(stored, the latest first: none\)"):
        rollback(tmp_path, "simple")
    with pytest.raises(ConfigError, match="0 stored versions have a digest that begins with 'ab'"):
        rollback(tmp_path, "simple", "ab")


async def test_pins_that_cannot_be_read_pin_nothing(tmp_path: Path) -> None:
    """Whatever is in the folder of pins, the files are served; nothing outside of it is read."""
    write(tmp_path / "simple.json", taking(3))
    (tmp_path / STATE).mkdir()
    digest = plan_digest(taking(3))
    for pins in ("{", "[]", {"simple": 1}, {"simple": {"serve": "../../simple", "instead_of": digest}}):
        write(tmp_path / STATE / "pins.json", pins)
        async with serving(tmp_path) as service:
            assert await answered(service) == [1, 2, 3], pins


async def test_a_directory_whose_state_cannot_be_written_is_served(tmp_path: Path) -> None:
    """Only rollback is missing then."""
    write(tmp_path / "simple.json", taking(3))
    write(tmp_path / STATE, "not a folder")
    async with serving(tmp_path) as service:
        assert await answered(service) == [1, 2, 3]
