"""Other people's event loops: native under trio, a guest run of trio on asyncio's own thread and loop.

What waits in the rooms above is written for trio alone and stands under `anywhere` or `anywhere_context`, which make
it work under any host. May import errors only; every room but graph may import it.
"""

from .anywhere import aclose, anywhere, anywhere_context

__all__ = ["aclose", "anywhere", "anywhere_context"]
