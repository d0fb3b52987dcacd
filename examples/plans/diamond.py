"""Two branches that meet: the last node waits for both. Run it to print the plan as JSON."""

from seedbed.plans.builder import EP, Node, PlanContext, plan


@plan
def diamond(ctx: PlanContext) -> Node:
    """Whom the user follows and who is recommended, as one list."""
    viewer = ctx.viewer(endpoint=EP.redis.redis_default)
    left = viewer.follow(endpoint=EP.redis.redis_default, fanout=10)
    right = viewer.recommendation(endpoint=EP.redis.redis_default, fanout=10)
    return left.concat(rhs=right)


if __name__ == "__main__":
    print(diamond.text(), end="")
