"""`seedbed card` and `seedbed push`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Group, Parameter

from .exit_codes import ExitCode
from .options import Flag, Machine, Several, open_dataset

if TYPE_CHECKING:
    from ..publish.card import CardOptions


@Parameter(name="*", group=Group("Text of the card", sort_key=1))
@attrs.frozen(kw_only=True)
class CardText:
    """What a card says that the directory does not know."""

    title: str | None = None
    """The title; by default the name of the recipe, or of the directory."""
    description: str | None = None
    """A paragraph below the title."""
    license: str | None = None
    """The licence as the hub names it, such as cc-by-4.0."""
    language: Several = ()
    """A language of the texts, such as en. May be repeated."""
    tag: Several = ()
    """A further tag. May be repeated."""

    def options(self) -> CardOptions:
        """The options as the library takes them."""
        from ..publish.card import CardOptions

        return CardOptions(
            title=self.title,
            description=self.description,
            license=self.license,
            languages=self.language,
            tags=self.tag,
        )


def card(
    directory: Path, /, *, stage: str | None = None, text: CardText = CardText(), machine: Machine = Machine()
) -> int:
    """Write the card of a dataset: README.md for the Hugging Face hub, and a description as Croissant 1.1.

    Both name recipe, models, seed, counts, cost and drops. They are written to .seedbed/card/ of the directory, and
    `push` places them at the root of what it sends.

    Parameters
    ----------
    directory
        The directory of a dataset, finished or not.
    stage
        Take this stage of a dataset of several, and not that at its root.

    """
    from ..publish.card import make_card
    from . import output

    dataset = open_dataset(directory, stage)
    paths = make_card(dataset, text.options()).write(dataset.path)
    if machine.json:
        output.print_json({"files": list(map(str, paths))})
    else:
        for path in paths:
            output.print_line(str(path))
    return ExitCode.OK


def push(
    directory: Path,
    target: str,
    /,
    *,
    stage: str | None = None,
    private: Flag = False,
    journal: Flag = False,
    dropped: Flag = False,
    message: Annotated[str | None, Parameter(name=["--message", "-m"])] = None,
    dry_run: Flag = False,
    text: CardText = CardText(),
    machine: Machine = Machine(),
) -> int:
    """Publish a dataset with its card on the Hugging Face hub, in one commit.

    The token is that of the hub's own tools: run `hf auth login`, or set HF_TOKEN.

    Parameters
    ----------
    directory
        The directory of a dataset, finished or not.
    target
        hf://org/name, or hf://org/name@branch; it is created if there is none.
    stage
        Take this stage of a dataset of several, and not that at its root.
    private
        Create it private.
    journal
        Send the manifest, the recipe and the journal too.
    dropped
        Send the dropped rows with their reasons too.
    message
        The message of the commit.
    dry_run
        Only list what would be sent.

    """
    from rich.filesize import decimal

    from ..publish.hub import push as send
    from . import output

    found = send(
        open_dataset(directory, stage),
        target,
        card=text.options(),
        private=private or None,
        journal=journal,
        dropped=dropped,
        dry_run=dry_run,
        message=message,
    )
    if machine.json:
        files = [{"name": each.name, "size": each.size} for each in found.files]
        output.print_json({"repository": found.repository, "files": files, "url": found.url})
        return ExitCode.OK
    if dry_run:
        output.print_table(("file", "size"), [(each.name, decimal(each.size)) for each in found.files])
    total = f"{len(found.files):,} files, {decimal(sum(each.size for each in found.files))}"
    output.print_line(f"{total} would be sent to {found.repository}" if dry_run else f"{total} sent: {found.url}")
    return ExitCode.OK
