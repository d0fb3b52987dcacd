"""Ten nodes, two branches of three, and what merges and ranks them. Run it to print the plan as JSON."""

from seedbed.plans.builder import EP, Key, Node, P, PlanContext, plan


@plan
def complex_dag(ctx: PlanContext) -> Node:
    """The fifty best media of those whom the user follows and of those who are recommended."""
    viewer = ctx.viewer(endpoint=EP.redis.redis_default)
    score = Key.id * P.media_age_penalty_weight.coalesce(0.1)
    follows = (
        viewer.follow(endpoint=EP.redis.redis_default, fanout=10)
        .media(endpoint=EP.redis.redis_default, fanout=10)
        .vm(out_key=Key.final_score, expr=score)
    )
    recommended = (
        viewer.recommendation(endpoint=EP.redis.redis_default, fanout=10)
        .media(endpoint=EP.redis.redis_default, fanout=10)
        .vm(out_key=Key.final_score, expr=score)
    )
    return follows.concat(rhs=recommended).sort(by=Key.final_score, order="desc").take(count=50)


if __name__ == "__main__":
    print(complex_dag.text(), end="")
