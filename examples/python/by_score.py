"""Assign GPUs by score: the fastest go to the first ranks. Scores may be your own numbers, or those of `muster bench device`."""
import muster


def work():
    return muster.rank(), muster.batch_share(32)


if __name__ == "__main__":
    gpus = muster.devices()
    scores = {gpu.index: 100 - 10 * gpu.index for gpu in gpus}
    how = {"scores": scores, "policy": "fastest"} if gpus else {}  # without GPUs, ranks have CPU slots
    print(muster.plan(n=len(gpus) or 2, **how))
    print(muster.spawn(work, n=len(gpus) or 2, quiet=True, **how))
