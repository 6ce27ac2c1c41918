import muster
from task import evaluate, fit, own_device

if __name__ == "__main__":
    with muster.Executor() as pool:
        runs = [pool.submit(fit, 3.0, own_device()), pool.submit(evaluate, 10, own_device())]
        print([run.result() for run in runs])
