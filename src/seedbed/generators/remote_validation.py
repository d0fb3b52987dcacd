"""Verdicts of a server: one call for each row, under a permit like any model's."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import ConfigError, Retryable
from ..graph import Kind
from ..models.mapping import excerpt, failure_of
from .column import Column
from .verdict import TOLD, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..models.http import Endpoint, HttpClient, HttpResponse
    from ..recipe.validation import Validation
    from .context import CellContext
    from .registry import Environment


def remote_column(spec: Validation, environment: Environment) -> Column:
    """A column of what a server says; its throttle key is that of the server."""
    assert spec.url is not None
    key = os.environ.get(spec.api_key_env) if spec.api_key_env is not None else None
    if spec.api_key_env is not None and not key:
        raise ConfigError(f"column {spec.name!r}: the environment variable {spec.api_key_env} is not set")
    return Column(
        spec.name,
        _RemoteValidator(spec, environment.http, key).agenerate,
        kind=Kind.CELL,
        requires=spec.of,
        key=f"{urlsplit(spec.url).netloc}/validation",
        dtype=TOLD,
    )


class _RemoteValidator:
    """Speaks to one URL, through the connections of the build that it is used in."""

    def __init__(self, spec: Validation, http: Callable[[], HttpClient], key: str | None) -> None:
        assert spec.url is not None
        self._column = spec.name
        self._url = spec.url
        self._headers = {"content-type": "application/json", "accept": "application/json", **spec.headers}
        self._secrets = (key,) if key else ()
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._http = http
        # The endpoint and whose it is: another build has other connections.
        self._opened: tuple[HttpClient, Endpoint] | None = None

    async def agenerate(self, context_: CellContext, **values: Any) -> dict[str, Any] | None:
        """The verdict on one row."""
        if all(value is None for value in values.values()):
            return None
        body = json.dumps(values, default=str).encode()

        async def send() -> dict[str, Any]:
            return self._read(await self._endpoint().send(body))

        verdict = await context_.call(send)
        context_.report_usage()
        return verdict

    def _endpoint(self) -> Endpoint:
        client = self._http()
        if self._opened is None or self._opened[0] is not client:
            self._opened = client, client.endpoint("POST", self._url, self._headers)
        return self._opened[1]

    def _read(self, response: HttpResponse) -> dict[str, Any]:
        failure = failure_of(self._url, response, self._secrets)
        if failure is not None:
            failure.args = (str(failure).replace("model ", "the validator ", 1),)
            raise failure
        try:
            said = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            shown = excerpt(response.body, self._secrets)
            raise Retryable(f"the validator {self._url!r} answered with malformed JSON: {shown!r}") from error
        return told(self._column, said)
