import os

from task import device_of, evaluate, fit
from torchrunx import Launcher


def main():
    rank = int(os.environ["LOCAL_RANK"])
    return fit(3.0, device_of(rank)) if rank == 0 else evaluate(10, device_of(rank))


if __name__ == "__main__":
    results = Launcher(workers_per_host=2, backend=None).run(main)
    print([results.rank(0), results.rank(1)])
