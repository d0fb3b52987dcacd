"""Other event loops: native under trio, a guest run of trio on asyncio's own thread and loop.

What waits in the packages above is written for trio alone and decorated with `anywhere` or `anywhere_context`, which
make it work under any host. Imports errors only; every package but graph may import it.
"""

from .anywhere import aclose, anywhere, anywhere_context

__all__ = ["aclose", "anywhere", "anywhere_context"]
