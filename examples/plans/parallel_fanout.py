"""Two branches of one source, which run at the same time. Run it to print the plan as JSON."""

from seedbed.plans.builder import EP, Node, PlanContext, plan


@plan
def parallel_fanout(ctx: PlanContext) -> list[Node]:
    """Whom the user follows, then who is recommended."""
    viewer = ctx.viewer(endpoint=EP.redis.redis_default)
    follows = viewer.follow(endpoint=EP.redis.redis_default, fanout=10)
    recommended = viewer.recommendation(endpoint=EP.redis.redis_default, fanout=10)
    return [follows, recommended]


if __name__ == "__main__":
    print(parallel_fanout.text(), end="")
