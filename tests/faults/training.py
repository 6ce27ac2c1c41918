"""What is wrong with a training's data or model, on one rank or all."""

import pathlib
import re

from place import expect
from table import row


def train(place, what):
    """The exit code, what was said, and by rank its weights, steps and skipped steps at the end."""
    probe = str(pathlib.Path(place.probe()).with_name("training_probe"))
    code, out, err = place.run("run", "-q", "-n", "2", "--collective-timeout", "30", probe, what)
    ends = {int(rank): (weights, int(steps), int(skipped))
            for rank, weights, steps, skipped in re.findall(r"rank (\d) weights (\S+) steps (\d+) skipped (\d+)", out)}
    return code, out + err, ends


@row(12, "a rank takes longer than the others in every step", "it is named at the job's end, with why")
def slow_rank(place):
    probe = str(pathlib.Path(place.probe()).with_name("trace_probe"))
    code, _, err = place.run("run", "-n", "3", "--cpu-slots", "3", "--run-dir", f"{place.folder}/run", probe, "slow")
    said = re.search(r"the others wait for rank 1 \(host \S+, cpu:1\): [\d.]+ ?ms a step longer than the median rank, computing", err)
    expect(code == 0 and said, err)
    return f"'{said.group(0)}'"


@row(23, "a rank has fewer batches than another, inside of join()", "it shadows the other's steps; one model at the end")
def uneven_inputs(place):
    code, said, ends = train(place, "uneven")
    expect(code == 0 and (ends[0][1], ends[1][1]) == (3, 4) and ends[0][0] == ends[1][0], said)
    return "3 and 4 batches, the same weights on both ranks"


@row(24, "a part of the model is not used in a step", "an error names the parameters; with find_unused_parameters it trains")
def unused_parameters(place):
    code, said, _ = train(place, "unused")
    expect(code == 1 and "other_head.weight, other_head.bias" in said and "find_unused_parameters" in said, said)
    code, said, ends = train(place, "unused allowed")
    expect(code == 0 and ends[0][0] == ends[1][0], said)
    return "'other_head.weight, other_head.bias' named; trained with find_unused_parameters"


@row(25, "NaN on one rank", "all ranks stop, or leave out the same step")
def nan_on_one_rank(place):
    code, said, ends = train(place, "nan")
    expect(code == 1 and "expected finite gradients, got NaN" in said and not ends, said)
    code, said, ends = train(place, "nan skipped")
    expect(code == 0 and ends[0] == ends[1] and ends[0][1:] == (3, 1), said)
    return "3 steps taken and 1 left out on both ranks, the same weights; without OnNonfinite::skip an error"
