"""A pipeline that asks a server twice and then computes four times. Run it to print the plan as JSON."""

from seedbed.plans.builder import EP, Key, Node, P, PlanContext, plan


@plan
def mixed_pipeline(ctx: PlanContext) -> Node:
    """The ten of those whom the user follows that score highest."""
    return (
        ctx.viewer(endpoint=EP.redis.redis_default)
        .follow(endpoint=EP.redis.redis_default, fanout=20)
        .vm(out_key=Key.final_score, expr=Key.id * P.media_age_penalty_weight.coalesce(0.5))
        .filter(pred=Key.final_score >= 0.5)
        .sort(by=Key.final_score, order="desc")
        .take(count=10)
    )


if __name__ == "__main__":
    print(mixed_pipeline.text(), end="")
