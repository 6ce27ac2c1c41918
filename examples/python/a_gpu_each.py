"""Different functions of one script, each in a process with a GPU of its own. As many run at a time as there are devices."""
import muster


def fit(width, rate):
    return f"width {width}, rate {rate}: loss {1 / (width * rate):.3f}"


def report(lines):
    return "best: " + min(lines, key=lambda line: float(line.rsplit(" ", 1)[1]))


if __name__ == "__main__":
    with muster.Executor() as pool:
        runs = [pool.submit(fit, width, rate) for width in (16, 64) for rate in (0.1, 0.5)]
        for run in runs:
            print(run.result(), "on", *run.devices)
        print(pool.submit(report, [run.result() for run in runs], gpus=0).result())
