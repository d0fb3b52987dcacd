"""A simulation as JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from .result import Estimate, Simulation, Used


def simulation_data(simulation: Simulation) -> dict[str, Any]:
    """Everything that a simulation found."""
    probed = simulation.probed
    return {
        **estimate_data(simulation.base),
        "variants": [
            {"changes": dict(variant.changes), **estimate_data(variant.estimate)} for variant in simulation.variants
        ],
        "probed": None if probed is None else attrs.asdict(probed),
    }


def estimate_data(estimate: Estimate) -> dict[str, Any]:
    """What one setting gives."""
    return {
        "rows": estimate.rows,
        "seeds": estimate.seeds,
        "seconds": attrs.asdict(estimate.seconds),
        "written": attrs.asdict(estimate.written),
        "dropped": attrs.asdict(estimate.dropped),
        "bottleneck": estimate.bottleneck,
        "stopped": estimate.stopped,
        "total": _used(estimate.total),
        "columns": [
            {
                "column": each.column,
                "model": each.model,
                **_used(each.used),
                "profile": each.profile.profile.said(),
                "origins": dict(each.profile.origins),
            }
            for each in estimate.calls
        ],
        "models": {model: _used(used) for model, used in estimate.models.items()},
        "keys": [
            {"models": list(use.models), "refused": use.refused, **attrs.asdict(use.load)} for use in estimate.keys
        ],
        "limits": [attrs.asdict(each) for each in estimate.limits],
        "timeline": [attrs.asdict(track) for track in estimate.timeline],
        "assumptions": list(estimate.assumptions),
        "notes": list(estimate.notes),
    }


def _used(used: Used) -> dict[str, Any]:
    return {name: attrs.asdict(spread) for name, spread in attrs.asdict(used, recurse=False).items()}
