"""What an endpoint is doing, as a frozen snapshot."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class EndpointStatistics:
    """Counts of one endpoint; `in_flight` and `waiting` are of this instant, all others since it was opened."""

    connected: bool
    in_flight: int
    """Commands that take a place of `max_inflight`: sent and not answered, those that nobody waits for any more too."""
    waiting: int
    """Calls of which at least one command waits for a place or for the connection."""
    sent: int
    """Commands."""
    sends: int
    """Writes to the connection; many commands go out in one."""
    dropped: int
    """Replies that came after their caller had been cancelled, had timed out or had failed."""
    errors: int
    """Calls that ended in an error of the endpoint."""
    reconnects: int
    """Connections that replaced an earlier one."""
