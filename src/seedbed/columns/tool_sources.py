"""The sources of tools that a chat model may call, as a recipe describes them: Python functions and MCP servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from .. import checks
from ..errors import ConfigError
from ..graph import nearest
from ..models.base import NOT_IN_FINGERPRINT
from ..models.mcp import Address
from ..models.provider import check_header_map, check_url, variables_in

if TYPE_CHECKING:
    from ..models.base import Tool

_texts = checks.expect(
    "a list of texts", lambda value: isinstance(value, tuple) and all(isinstance(each, str) and each for each in value)
)


@attrs.frozen(kw_only=True)
class ToolSource:
    """The limits of tools that come from one place."""

    timeout: float = attrs.field(default=60.0, validator=checks.seconds)
    """How long one call may take; the model is told if it takes longer."""
    max_result: int = attrs.field(default=20_000, validator=checks.whole(1))
    """How many characters of a result the model gets; the rest is cut off."""

    def code(self) -> tuple[str, ...]:
        """The code that it runs: a `module:name`, or a command."""
        return ()

    def urls(self) -> tuple[str, ...]:
        """The URL that it contacts, if any."""
        return ()

    @property
    def header_env(self) -> tuple[str, ...]:
        """The environment variables that it sends in headers."""
        return ()


@attrs.frozen(kw_only=True)
class FunctionTool(ToolSource):
    """A Python function, sync or async (on trio). Its parameters are annotated: they are the schema of its arguments.

    Its result is text, or is given to the model as JSON; what it raises is given to the model as an error.
    """

    function: Callable[..., Any] | str = attrs.field(
        validator=checks.expect(
            "a function or 'module:name'", lambda value: callable(value) or (isinstance(value, str) and ":" in value)
        )
    )
    """The function, or its `module:name`."""
    name: str | None = attrs.field(default=None, validator=checks.optional(checks.text))
    """What the model calls it; by default its name."""
    description: str | None = attrs.field(default=None, validator=checks.optional(checks.text))
    """What it does, for the model; by default its docstring."""
    idempotent: bool = attrs.field(default=True, validator=checks.flag)
    """Whether it may run twice for one call. If not, a resumed run drops a row in which it may have run already."""

    def code(self) -> tuple[str, ...]:
        return (self.function,) if isinstance(self.function, str) else ()


@attrs.frozen(kw_only=True)
class MCPServer(ToolSource):
    """The tools of an MCP server: `command` starts one that speaks on its standard streams, `url` is one over HTTP.

    It needs the extra `seedbed[mcp]`. In a recipe file `command` needs `--allow-code`.
    """

    command: tuple[str, ...] = attrs.field(
        default=(), converter=checks.as_names, validator=_texts, metadata=NOT_IN_FINGERPRINT
    )
    """The program and its arguments; it starts in the folder of the recipe and ends with the run."""
    env: tuple[str, ...] = attrs.field(
        default=(), converter=checks.as_names, validator=_texts, metadata=NOT_IN_FINGERPRINT
    )
    """The environment variables that the program gets besides `PATH`, `HOME` and the like."""
    url: str | None = attrs.field(default=None, validator=checks.optional(check_url), metadata=NOT_IN_FINGERPRINT)
    """The URL of a server that speaks streamable HTTP."""
    headers: Mapping[str, str] = attrs.field(
        factory=dict, validator=check_header_map, repr=False, metadata=NOT_IN_FINGERPRINT
    )
    """Headers to send with each request; `${NAME}` in one stands for an environment variable."""
    only: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names, validator=_texts)
    """The tools that the model gets, by the server's names; by default all."""
    prefix: str = attrs.field(default="", validator=checks.expect("text", lambda value: isinstance(value, str)))
    """What is put in front of their names, where two servers have tools of one name."""
    idempotent: bool | None = attrs.field(default=None, validator=checks.optional(checks.flag))
    """Whether its tools may run twice for one call; by default what the server says of each (`readOnlyHint`,
    `idempotentHint`), and where it says nothing they may not."""

    def __attrs_post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigError("an MCP server has either a command or a url")
        if self.headers and self.command:
            raise ConfigError("headers are for an MCP server with a url; a command gets variables by env")
        if self.env and self.url:
            raise ConfigError("env is for an MCP server with a command; a url gets variables by headers: ${NAME}")

    @property
    def address(self) -> Address:
        """How it is reached; servers of one address are one."""
        headers = tuple(sorted(self.headers.items()))
        return Address(command=self.command, env=self.env, url=self.url, headers=headers)

    def code(self) -> tuple[str, ...]:
        return (str(self.address),) if self.command else ()

    def urls(self) -> tuple[str, ...]:
        return () if self.url is None else (self.url,)

    @property
    def header_env(self) -> tuple[str, ...]:
        return variables_in(self.headers)


def _tool(given: Any) -> ToolSource:
    """A source of tools from a function, its `module:name`, or a mapping of fields."""
    if isinstance(given, ToolSource):
        return given
    if isinstance(given, str) or (callable(given) and not isinstance(given, type)):
        return FunctionTool(function=given)
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"a tool is a function, 'module:name', or a mapping with function, command or url, not {given!r}"
        )
    kind: type[ToolSource] = FunctionTool if "function" in given else MCPServer
    known = [field.name for field in attrs.fields(kind)]
    if not {"function", "command", "url"} & given.keys():
        raise ConfigError(f"a tool needs a function, or the command or the url of an MCP server, not {dict(given)!r}")
    for field in given:
        if field not in known:
            raise ConfigError(f"unknown field {field!r}{nearest(str(field), known)}")
    return kind(**given)


def as_tools(value: Any) -> Any:
    """Convert one source of tools, or several, to a tuple."""
    several = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    found: list[ToolSource] = []
    for index, each in enumerate(value if several else (value,)):
        try:
            found.append(_tool(each))
        except ConfigError as error:
            raise ConfigError(f"tools[{index}]: {error}", field="tools") from None
    return tuple(found)


check_tools_field = checks.expect("a list of tools", lambda value: isinstance(value, tuple))


@attrs.frozen(kw_only=True)
class BoundTool:
    """A tool that can be called: its definition, and its function from the JSON of its arguments to a text."""

    tool: Tool
    run: Callable[[str], Awaitable[str]]
    source: ToolSource
    is_idempotent: bool
