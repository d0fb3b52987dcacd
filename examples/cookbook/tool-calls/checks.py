"""Checks of tool calls, named in recipe.yaml."""

import json

import jsonschema


def fits_tool(called: str, arguments: str, tool: str, parameters: str) -> str | None:
    """What is wrong with a call, or None: the tool must be the one of this row, or none, and its arguments must fit."""
    if called == "none":
        return None
    if called != tool:
        return f"there is no tool {called!r}"
    try:
        jsonschema.validate(json.loads(arguments), json.loads(parameters))
    except ValueError as error:
        return f"the arguments are not JSON: {error}"
    except jsonschema.ValidationError as error:
        return f"{error.json_path}: {error.message}"
    return None
