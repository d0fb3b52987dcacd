"""What the event log of a run says of its recipe: enough to draw the graph and to show values and prompts as they are.

A viewer reads this and not the recipe, whose code and files it must not load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .plan import BuildPlan, StagePlan

# Fields of specs that a viewer shows or needs to show a value.
_SHOWN = ("model", "prompt", "system", "language", "of")
_LONGEST = 20_000


def describe_run(plan: BuildPlan, *, title: str | None) -> dict[str, Any]:
    """The header of the event log of a run."""
    output = plan.output
    return {
        "title": title,
        "rows": output.rows,
        "row_groups": output.layout.count,
        "finished_rows": output.finished_rows,
        "stages": [{"name": stage.stage, "parent": stage.parent} for stage in plan.stages],
        "columns": [column for stage in plan.stages for column in _columns(stage)],
        "processors": [
            {"name": each.label, "stage": each.stage.value} for stage in plan.stages for each in stage.source.processors
        ],
    }


def _columns(stage: StagePlan) -> Iterator[dict[str, Any]]:
    recipe, inherited = stage.source.recipe, stage.inherited_step
    specs = {} if recipe is None else {spec.name: spec for spec in recipe.columns}
    for node in stage.graph.nodes:
        if inherited is not None and node.index == inherited.node:
            continue  # what rows have from those of another stage
        spec = specs.get(node.name)
        fields = {name: getattr(spec, name, None) for name in _SHOWN}
        yield {
            "name": node.name,
            "stage": stage.stage,
            "kind": node.kind.value,
            "type": None if spec is None else spec.type,
            "outputs": list(node.outputs),
            "requires": list(node.requires),
            **{name: value[:_LONGEST] for name, value in fields.items() if isinstance(value, str)},
        }
