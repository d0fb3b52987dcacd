"""The plans of a directory, by name: which version of each is served, and why another is not.

A version is identified by its digest. A changed file becomes active only once it validates and its warm-up requests
were answered; until then, and if it never does, the version before it stays. Active versions are stored, so that
`rollback` can bring one back; it writes a pin, which every process that serves the directory follows.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ...errors import ConfigError, InvalidPlan, PlanError
from ..digest import canonical_json, plan_digest
from ..documents import Code, Problems, read_document
from ..format import parse_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ..engine import PlanEngine
    from ..format import Plan
    from ..ops import OpRegistry
    from ..registries import Registries

STATE: Final = ".seedbed"
"""The folder, inside the served directory, of stored versions and pins."""

WARMUP: Final = ".warmup.json"
"""What replaces `.json` in the name of the file with a plan's warm-up requests: a JSON array."""

_PINS: Final = "pins.json"
_RECENT: Final = 4  # versions of a plan that stay loaded beside the active one
_WARMUP_SECONDS: Final = 10.0  # for each request
_RETRY_SECONDS: Final = 10.0  # before failed warm-up requests are sent again

_NAME = re.compile(r"[A-Za-z0-9_]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Problem = tuple[str, str, str]  # code, JSON path, message
Signature = tuple[tuple[int, int, int] | None, ...]


@attrs.frozen(kw_only=True)
class Version:
    """One valid version of a plan."""

    plan: Plan
    digest: str
    file: str
    loaded_at: float  # of the wall clock


@attrs.define(eq=False, kw_only=True)
class Entry:
    """The versions of one plan; changed by `Catalog.refresh` only."""

    active: Version | None = None
    recent: dict[str, Version] = attrs.field(factory=dict)  # by digest, the oldest first


@attrs.frozen(kw_only=True)
class Found:
    """What a file of the directory says, after pins were followed."""

    file: Path
    signature: Signature
    name: str
    digest: str
    document: Mapping[str, Any] = attrs.field(factory=dict)
    plan: Plan | None = None
    warmups: tuple[Any, ...] = ()
    problems: tuple[Problem, ...] = ()
    retry: bool = False  # whether it may be another time, though nothing changes


class Catalog:
    """The plans of a directory. `refresh` brings it up to date; all other methods only look."""

    def __init__(self, directory: Path, registries: Registries, ops: OpRegistry) -> None:
        self.directory = directory
        self._registries = registries
        self._ops = ops
        self._entries: dict[str, Entry] = {}
        # By file: what was made of it, so that nothing is done twice; and when what failed is tried again.
        self._seen: dict[Path, Signature] = {}
        self._names: dict[Path, str] = {}
        self._retry_at: dict[Path, float] = {}
        self.problems: dict[str, tuple[Problem, ...]] = {}  # by file: why it is not served
        self.reloads = 0
        self.failures = 0

    @property
    def active(self) -> list[Version]:
        """The versions that are served, by name."""
        return [entry.active for _, entry in sorted(self._entries.items()) if entry.active is not None]

    def find(self, name: str) -> Version | None:
        """The active version of a plan; with NAME@DIGEST that one, if it is still loaded. Digests may be shortened."""
        name, _, digest = name.partition("@")
        entry = self._entries.get(name)
        if entry is None or entry.active is None:
            return None
        if not digest:
            return entry.active
        return next((each for each in _loaded(entry) if each.digest.startswith(digest)), None)

    async def refresh(self, engine: PlanEngine) -> None:
        """Take over what has changed in the directory, file by file; a file with a problem changes nothing."""
        now = trio.current_time()
        try:
            found = await trio.to_thread.run_sync(self._scan, now)
        except OSError as error:
            self.problems["."] = ((Code.INVALID_VALUE, "$", f"the directory cannot be read: {error}"),)
            return
        self.problems.pop(".", None)
        for each in found:
            problems = each.problems or await self._warm_up(each, engine)
            self._seen[each.file] = each.signature
            if problems:
                self.failures += 1
                self.problems[each.file.name] = problems
                if each.retry or not each.problems:
                    self._retry_at[each.file] = now + _RETRY_SECONDS
                continue
            self.problems.pop(each.file.name, None)
            await self._activate(each)
        self._forget_missing()

    def _forget_missing(self) -> None:
        for file in [file for file in self._seen if not file.exists()]:
            del self._seen[file]
            self.problems.pop(file.name, None)
            self._forget_name(file)

    def _forget_name(self, file: Path) -> None:
        """Stop serving the plan of a file, unless another file holds it by now."""
        name = self._names.pop(file, None)
        if name is not None and name not in self._names.values():
            self._entries.pop(name, None)

    async def _warm_up(self, found: Found, engine: PlanEngine) -> tuple[Problem, ...]:
        """Compile a plan and send its warm-up requests; the problems that stop it from becoming active."""
        assert found.plan is not None
        entry = self._entries.get(found.name)
        if entry is not None and entry.active is not None and entry.active.digest == found.digest:
            return ()
        try:
            engine.explain(found.plan)
        except Exception as error:  # noqa: BLE001  an op may be user code
            return (_raised(error),)
        for position, request in enumerate(found.warmups):
            try:
                await engine.execute(found.plan, request, deadline=_WARMUP_SECONDS)
            except PlanError as error:
                return ((error.code, f"$[{position}]", f"warm-up request {position} failed: {error}"),)
            except Exception as error:  # noqa: BLE001  nothing that a new version does may end the service
                return (_raised(error),)
        return ()

    async def _activate(self, found: Found) -> None:
        assert found.plan is not None
        entry = self._entries.setdefault(found.name, Entry())
        if self._names.get(found.file) != found.name:
            self._forget_name(found.file)
            self._names[found.file] = found.name
        before = entry.active
        if before is not None and before.digest == found.digest:
            return
        entry.active = Version(plan=found.plan, digest=found.digest, file=found.file.name, loaded_at=time.time())
        entry.recent.pop(found.digest, None)
        await trio.to_thread.run_sync(_store, self.directory, found)
        if before is not None:
            self.reloads += 1
            entry.recent[before.digest] = before
            while len(entry.recent) > _RECENT:
                del entry.recent[next(iter(entry.recent))]

    def _scan(self, now: float) -> list[Found]:
        """Read the files that have changed; in a thread, while nothing else changes this object."""
        pins = read_pins(self.directory)
        files = plan_files(self.directory)
        taken = {name: file for file, name in self._names.items() if file in files}
        found: list[Found] = []
        for file in files:
            warmup, pin_file = _warmup_file(file), self.directory / STATE / _PINS
            signature = (_signature(file), _signature(warmup), _signature(pin_file))
            if signature == self._seen.get(file) and now < self._retry_at.get(file, now + 1):
                continue
            self._retry_at.pop(file, None)
            each = self._read(file, signature, pins)
            if not each.problems and taken.setdefault(each.name, file) != file:
                message = f"the plan name {each.name!r} is taken by {taken[each.name].name}"
                each = attrs.evolve(each, problems=((Code.DUPLICATE_NAME, "$.plan_name", message),))
            found.append(each)
        return found

    def _read(self, file: Path, signature: Signature, pins: Mapping[str, Pin]) -> Found:
        name, digest = "", ""
        try:
            document = _document(file)
            name, digest = str(document.get("plan_name", "")), plan_digest(document)
            pin = pins.get(name)
            if pin is not None and pin.instead_of == digest and _NAME.fullmatch(name) and _DIGEST.fullmatch(pin.serve):
                digest = pin.serve
                document = _document(_version_file(self.directory, name, digest))
            plan = parse_plan(document, self._registries, self._ops)
            warmups = _warmups(_warmup_file(file))
        except InvalidPlan as error:
            return Found(file=file, signature=signature, name=name, digest=digest, problems=error.problems)
        except OSError as error:
            problem = (Code.INVALID_VALUE, "$", f"{error.filename or file} cannot be read: {error.strerror or error}")
            return Found(file=file, signature=signature, name=name, digest=digest, problems=(problem,), retry=True)
        except Exception as error:  # noqa: BLE001  checks of ops may be user code, and a document as deep as it likes
            return Found(file=file, signature=signature, name=name, digest=digest, problems=(_raised(error),))
        return Found(
            file=file,
            signature=signature,
            name=plan.name,
            digest=digest,
            document=document,
            plan=plan,
            warmups=warmups,
        )


def _store(directory: Path, found: Found) -> None:
    """Store an active version; its time of change is that of its activation, by which `rollback` finds the one before.

    A directory that cannot be written is served all the same, without `rollback`.
    """
    target = _version_file(directory, found.name, found.digest)
    with contextlib.suppress(OSError):
        if target.exists():
            os.utime(target)
        else:
            _write(target, canonical_json(found.document))


def _raised(error: Exception) -> Problem:
    return "RAISED", "$", f"{type(error).__name__}: {error}"


def _loaded(entry: Entry) -> Iterable[Version]:
    if entry.active is not None:
        yield entry.active
    yield from reversed(entry.recent.values())


def plan_files(directory: Path) -> list[Path]:
    """The files of a directory that hold a plan each, by name."""
    names = sorted(each.name for each in os.scandir(directory) if each.name.endswith(".json") and each.is_file())
    return [directory / name for name in names if not name.startswith(".") and not name.endswith(WARMUP)]


def _signature(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _document(file: Path) -> dict[str, Any]:
    problems = Problems()
    value = read_document(file, problems)
    document = value.raw
    if not problems.found and not isinstance(document, dict):
        value.expected("an object")
    problems.raise_invalid_plan()
    assert isinstance(document, dict)
    return document


def _warmup_file(file: Path) -> Path:
    return file.with_name(file.stem + WARMUP)


def _warmups(file: Path) -> tuple[Any, ...]:
    if not file.exists():
        return ()
    problems = Problems()
    items = read_document(file, problems).items("an array of requests") or []
    problems.raise_invalid_plan()
    return tuple(item.raw for item in items)


@attrs.frozen(kw_only=True)
class Pin:
    """Serve one version of a plan for as long as its file holds another one."""

    serve: str
    instead_of: str


def read_pins(directory: Path) -> dict[str, Pin]:
    """The pins of a directory by the names of plans; what cannot be read pins nothing."""
    try:
        stored = json.loads((directory / STATE / _PINS).read_bytes())
        return {name: Pin(serve=str(pin["serve"]), instead_of=str(pin["instead_of"])) for name, pin in stored.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def rollback(directory: Path, name: str, to: str | None = None) -> tuple[str, str]:
    """Serve an earlier version of a plan: that with the digest `to`, or the one before. Returns both digests.

    All processes that serve the directory follow within a second. The next change of the plan's file ends it.
    """
    current = next((found for file in plan_files(directory) if (found := _named(file, name)) is not None), None)
    if current is None:
        raise ConfigError(f"no file of {str(directory)!r} holds a plan {name!r}")
    pins = read_pins(directory)
    pin = pins.get(name)
    served = pin.serve if pin is not None and pin.instead_of == current else current
    stored = _stored(directory, name)
    candidates = [digest for digest in stored if (digest.startswith(to) if to else digest != served)]
    if not candidates or (to and len(candidates) > 1):
        known = ", ".join(digest[:12] for digest in stored) or "none"
        what = (
            f"{len(candidates)} stored versions have a digest that begins with {to!r}" if to else "no earlier version"
        )
        raise ConfigError(f"plan {name!r} of {str(directory)!r}: {what} (stored, the latest first: {known})")
    if candidates[0] == current:
        pins.pop(name, None)
    else:
        pins[name] = Pin(serve=candidates[0], instead_of=current)
    _write(directory / STATE / _PINS, json.dumps({each: attrs.asdict(pin) for each, pin in pins.items()}, indent=1))
    return served, candidates[0]


def _named(file: Path, name: str) -> str | None:
    """The digest of a file's plan if it has that name."""
    try:
        document = _document(file)
    except (OSError, InvalidPlan):
        return None
    return plan_digest(document) if document.get("plan_name") == name else None


def _stored(directory: Path, name: str) -> list[str]:
    """The digests of the stored versions of a plan, the last that became active first."""
    folder = directory / STATE / "versions" / name
    try:
        files = [(each.stat().st_mtime_ns, each.stem) for each in folder.iterdir() if each.suffix == ".json"]
    except OSError:
        return []
    return [digest for _, digest in sorted(files, reverse=True)]


def _version_file(directory: Path, name: str, digest: str) -> Path:
    return directory / STATE / "versions" / name / f"{digest}.json"


def _write(file: Path, text: str) -> None:
    """Replace a file as a whole: several processes may write it, and others read it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_name(f".{file.name}.{os.getpid()}")
    staged.write_text(text, encoding="utf-8")
    staged.replace(file)
