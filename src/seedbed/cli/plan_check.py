"""`seedbed plan check`."""

from __future__ import annotations

from .exit_codes import ExitCode
from .options import Machine  # noqa: TC001  cyclopts reads the annotations
from .plan_options import PlanSource


def check_plan(plan: str, /, *, source: PlanSource | None = None, machine: Machine | None = None) -> int:
    """Tell everything that is wrong with a plan, at once; nothing is run and no server is asked.

    Parameters
    ----------
    plan
        A JSON file, or FILE.py:FUNCTION with --allow-code.

    """
    from . import output
    from .plan_files import find_problems

    found, problems = find_problems(plan, source or PlanSource())
    if machine is not None and machine.json:
        facts = {} if found is None else {"plan": found.name, "nodes": len(found.nodes), "outputs": found.outputs}
        output.print_json({"ok": found is not None, "problems": problems, **facts})
    elif found is None:
        out = output.console()
        for each in problems:
            out.print(f"{each['code']}: {each['path']}: {each['message']}", markup=False, soft_wrap=True)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        output.console(error=True).print(f"{plan}: INVALID_PLAN: {count}", markup=False, soft_wrap=True)
    else:
        outputs = ", ".join(found.outputs)
        told = f"{plan}: no problems; plan {found.name}, {len(found.nodes)} nodes, outputs: {outputs}"
        output.console().print(told, markup=False, soft_wrap=True)
    return ExitCode.OK if found is not None else ExitCode.BAD_INPUT
