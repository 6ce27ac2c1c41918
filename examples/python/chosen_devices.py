"""Ranks on the devices with the best links: plan first, look at the reasons, then start just that plan."""
import muster


def work():
    return muster.rank(), muster.is_main()


if __name__ == "__main__":
    plan = muster.plan(n=2, policy="topology" if muster.devices() else None)
    for rank in plan:
        print(f"rank {rank.rank}: {rank.device} ({rank.reason})")
    print(muster.spawn(work, plan=plan, quiet=True))
