"""`seedbed plan`: check, run, measure, explain and list plans."""

from __future__ import annotations

from cyclopts import App

plan = App(name="plan", help="Run plans: request-scoped graphs of ops under a deadline.")

# As in main: a command is imported when it is used.
for _name, _place, _sentence in (
    ("check", "plan_check:check_plan", "Tell everything that is wrong with a plan; nothing is run."),
    ("run", "plan_run:run_plan", "Answer one request."),
    ("bench", "plan_bench:bench_plan", "Answer many requests and say how fast."),
    ("explain", "plan_explain:explain_plan", "Show what runs where: segments, endpoints, writes, calibration."),
    ("list", "plan_list:list_plans", "List the plans of a directory, the ops and the registries."),
):
    plan.command(f"seedbed.cli.{_place}", name=_name, help=_sentence)
