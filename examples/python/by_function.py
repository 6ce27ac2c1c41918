"""Assign GPUs by a function of the rank and the devices: here, even ranks take the first devices and odd ranks the last."""
import muster


def pick(rank, devices):
    return devices[rank // 2] if rank % 2 == 0 else devices[-1 - rank // 2]


def work():
    return muster.rank(), muster.local_rank(), muster.world_size()


if __name__ == "__main__":
    gpus = muster.devices()
    n = min(4, len(gpus)) or 2
    how = {"map": pick} if gpus else {}  # without GPUs, ranks have CPU slots
    print(muster.plan(n=n, **how))
    print(muster.spawn(work, n=n, quiet=True, **how))
