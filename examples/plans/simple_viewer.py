"""One node: the user of the request. Run it to print the plan as JSON."""

from seedbed.plans.builder import EP, Node, PlanContext, plan


@plan
def simple_viewer(ctx: PlanContext) -> Node:
    """Who asks, and from which country."""
    return ctx.viewer(endpoint=EP.redis.redis_default)


if __name__ == "__main__":
    print(simple_viewer.text(), end="")
