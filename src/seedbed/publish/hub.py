"""Publish a dataset on the Hugging Face hub: its rows, its card, and nothing else unless requested."""

from __future__ import annotations

import importlib
import io
import re
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ConfigError, StoreError
from ..store.files import PRIVATE, check_links
from .card import CROISSANT, README, CardOptions, make_card

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..store.dataset import Dataset

_TARGET = re.compile(r"hf://(?:datasets/)?(?P<repo>[\w.-]+/[\w.-]+?)/?(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_JOURNAL = ("manifest.log", "recipe.yaml")  # and the segments of the journal


@attrs.frozen
class Sent:
    """A file of a push."""

    name: str
    """Its name on the hub."""
    size: int
    """Its bytes."""
    source: Path | bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Pushed:
    """What a push has sent, or would send."""

    repository: str
    """The name on the hub."""
    files: tuple[Sent, ...]
    """The files."""
    url: str | None
    """The address of the commit; None if nothing was sent."""


def push(
    dataset: Dataset,
    target: str,
    *,
    card: CardOptions | None = None,
    private: bool | None = None,
    journal: bool = False,
    dropped: bool = False,
    dry_run: bool = False,
    message: str | None = None,
) -> Pushed:
    """Send a dataset to `hf://org/name`, or `hf://org/name@branch`, in one commit that replaces its parts there.

    Journal and dropped rows are sent only if requested. `dry_run` sends nothing and needs no library and no network.
    The token is that of the hub's own tools: `hf auth login`, or HF_TOKEN.
    """
    found = _TARGET.fullmatch(target)
    if found is None:
        raise ConfigError(f"a dataset is pushed to hf://org/name or hf://org/name@branch, not to {target!r}")
    check_links(dataset.root)
    repository, revision = found["repo"], found["revision"] or "main"
    files = tuple(_files(dataset, card, journal=journal, dropped=dropped))
    if dry_run:
        return Pushed(repository=repository, files=files, url=None)
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise ConfigError(f"push needs huggingface_hub ({error}): install seedbed[hub]") from error
    # HTTP errors of the hub, and no token at all.
    failures = (
        errors.HfHubHTTPError,
        errors.LocalTokenNotFoundError,
        errors.HTTPError,
        OSError,
        RuntimeError,
        ValueError,
    )
    try:
        api = hub.HfApi(library_name="seedbed")
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        if revision != "main":
            api.create_branch(repository, branch=revision, repo_type="dataset", exist_ok=True)
        names = {each.name for each in files}
        # Parts of an earlier push, of which there may have been more.
        old = [
            name
            for name in api.list_repo_files(repository, repo_type="dataset", revision=revision)
            if name.startswith("data/") and name.endswith(".parquet") and name not in names
        ]
        operations = [hub.CommitOperationDelete(path_in_repo=name) for name in old]
        operations += [
            hub.CommitOperationAdd(
                path_in_repo=each.name,
                path_or_fileobj=each.source if isinstance(each.source, bytes) else str(each.source),
            )
            for each in files
        ]
        commit = api.create_commit(
            repository,
            operations,
            commit_message=message or f"{dataset.rows:,} rows",
            repo_type="dataset",
            revision=revision,
        )
    except failures as error:
        reason = str(error).strip().partition("\n")[0]
        raise StoreError(
            f"{dataset.path} could not be pushed to {target}: {reason}; the same command continues with what is missing"
        ) from error
    return Pushed(repository=repository, files=files, url=str(commit.commit_url))


def _files(dataset: Dataset, card: CardOptions | None, *, journal: bool, dropped: bool) -> Iterator[Sent]:
    path, parts = dataset.path, dataset.parts
    names = [f"data/train-{index:05d}-of-{len(parts):05d}.parquet" for index in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        staged = path / (part.staged or part.name)  # still there if the build died before the rename
        yield Sent(name, part.size, staged if staged.is_file() else path / part.name)
    made = make_card(dataset, card, files=list(zip(names, parts, strict=True)))
    for name, text in ((README, made.readme), (CROISSANT, made.croissant)):
        yield Sent(name, len(text.encode()), text.encode())
    if dropped and dataset.drops:
        content = _parquet(dataset)
        yield Sent("dropped/dropped.parquet", len(content), content)
    # Cells of image columns name these files.
    root = dataset.root
    folders = [root / PRIVATE / "images"]
    listed = [file for folder in folders if folder.is_dir() for file in sorted(folder.rglob("*")) if file.is_file()]
    if journal:
        private = root / PRIVATE
        listed += [private / name for name in _JOURNAL if (private / name).is_file()]
        listed += sorted(private.glob("journal-*.log"))
    for file in listed:
        yield Sent(file.relative_to(root).as_posix(), file.stat().st_size, file)


def _parquet(dataset: Dataset) -> bytes:
    buffer = io.BytesIO()
    dataset.dropped().write_parquet(buffer)
    return buffer.getvalue()
