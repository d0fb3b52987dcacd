"""Two nodes: a source that waits for a server, then a filter that uses the CPU. Run it to print the plan as JSON."""

from seedbed.plans.builder import EP, Key, Node, PlanContext, plan


@plan
def viewer_filter(ctx: PlanContext) -> Node:
    """The user of the request, unless the id is 5 or less."""
    return ctx.viewer(endpoint=EP.redis.redis_default).filter(pred=Key.id > 5)


if __name__ == "__main__":
    print(viewer_filter.text(), end="")
