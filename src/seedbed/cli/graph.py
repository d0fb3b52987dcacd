"""`seedbed graph`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations

from .options import Machine, RecipeChanges


def graph(
    recipe: Path,
    /,
    *,
    svg: Path | None = None,
    changes: RecipeChanges | None = None,
    machine: Machine | None = None,
) -> int:
    """Show which column needs which: mermaid text, or a drawing.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.
    svg
        Write a drawing to this file instead; - for standard output.

    """
    import sys

    from ..graph import build_graph
    from . import output
    from .recipes import compile_recipe, read_recipe
    from .svg import draw_graph

    changes = changes or RecipeChanges()
    given = read_recipe(recipe, changes)
    source = compile_recipe(given, allow_code=changes.allow_code)
    found = build_graph(source.columns)
    if machine is not None and machine.json:
        nodes = [
            {
                "name": node.name,
                "kind": node.kind.value,
                "outputs": list(node.outputs),
                "requires": list(found.upstream(node.name)),
            }
            for node in found.nodes
        ]
        output.print_json({"columns": nodes})
    elif svg is None:
        sys.stdout.write(found.mermaid())
    else:
        labels = {spec.name: spec.type for spec in given.columns}
        drawing = draw_graph(found, labels)
        if str(svg) == "-":
            sys.stdout.write(drawing)
        else:
            svg.write_text(drawing, encoding="utf-8")
    return 0
