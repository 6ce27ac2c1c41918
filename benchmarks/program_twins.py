#!/usr/bin/env python3
"""Runs the Python programs of docs/programs on two processes without a GPU, takes the last checkpoint of each away, and runs it
again. A markdown table: after which step it went on, and whether its last checkpoint then has the same bits.

    PYTHON benchmarks/program_twins.py [accelerate | fabric] [PROGRAM...]

PYTHON has torch, torchvision, accelerate, lightning-fabric, webdataset, torchmetrics, pandas, scikit-learn and safetensors. All
programs take ten minutes. `fabric run` starts those of Fabric, torchrun those of Accelerate: `accelerate launch` starts two
processes only where there are GPUs. Ends with 1 if a program fails, or does not go on after the checkpoint.
"""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "benchmarks" / "peers" / "programs"
PEERS = ("accelerate", "fabric")
LIMIT_SECONDS = 600
# Where each that trains keeps its checkpoints; of the folds the last one.
FOLDERS = {"classifier": "classifier", "language_model": "lm", "table": "table", "k_folds": "k_folds/4", "shards": "shards",
           "reinforcement": "pole", "gan": "gan", "fine_tune": "fine_tune"}
NO_TRAINING = ("evaluate", "predict")
NEEDS_CLASSIFIER = ("fine_tune", "evaluate", "predict")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def command_of(peer, program):
    script = str(PROGRAMS / f"{peer}_{program}.py")
    if peer == "accelerate":
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", script]
    return [sys.executable, "-m", "lightning_fabric.cli", "--accelerator=cpu", "--devices=2", "--strategy=ddp",
            f"--main-port={free_port()}", script]


def run(peer, program, home):
    """Throws: RuntimeError with the end of what it says."""
    env = dict(os.environ, ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command_of(peer, program), cwd=home, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{peer}_{program}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def steps_printed(text):
    return [int(step) for step in re.findall(r"'step': (\d+)", text)]


def step_of(checkpoint):
    return int(re.search(r"step-(\d+)", checkpoint.name)[1])


def checkpoints_of(peer, program, home):
    """The newest last."""
    pattern = "step-*" if peer == "accelerate" else "step-*.ckpt"
    return sorted((home / "runs" / FOLDERS[program]).glob(pattern), key=step_of)


def tensors_in(value):
    import torch
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors_in(inner)


def weights_of(checkpoint):
    """All tensors: with Accelerate those of the models, with Fabric those of the optimizers too."""
    import torch
    from safetensors.torch import load_file
    if checkpoint.is_dir():
        return [tensor for path in sorted(checkpoint.glob("*.safetensors")) for tensor in load_file(path).values()]
    return list(tensors_in(torch.load(checkpoint, weights_only=False)))


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def outcome(peer, program, home):
    """What the table says of it."""
    import torch
    run(peer, program, home)
    if program in NO_TRAINING:
        return "runs"
    saved = checkpoints_of(peer, program, home)
    if len(saved) < 2:
        raise RuntimeError(f"{peer}_{program}: expected two checkpoints or more, got {len(saved)}")
    before, last = saved[-2:]
    expected = weights_of(last)
    remove(last)
    printed = steps_printed(run(peer, program, home))
    if not printed or min(printed) <= step_of(before):
        raise RuntimeError(f"{peer}_{program}: expected to go on after step {step_of(before)}, got the steps {printed}")
    found = checkpoints_of(peer, program, home)[-1]
    if found.name != last.name:
        raise RuntimeError(f"{peer}_{program}: expected {last.name} again, got {found.name}")
    got = weights_of(found)
    same = len(got) == len(expected) and all(torch.equal(a, b) for a, b in zip(got, expected))
    return f"after step {step_of(before)}, {'the same' if same else 'other'} bits"


def main(asked):
    peers = [peer for peer in PEERS if peer in asked] or PEERS
    programs = [name for name in asked if name not in PEERS] or [*FOLDERS, *NO_TRAINING]
    print("| program | peer | resumed |\n|---|---|---|")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "data"
        subprocess.run([sys.executable, "-B", ROOT / "examples/programs/make_data.py", data], check=True, stdout=subprocess.DEVNULL)
        classifier = pathlib.Path(folder) / "accelerate"
        for peer in peers:
            home = pathlib.Path(folder) / peer
            home.mkdir(exist_ok=True)
            for path in data.iterdir():
                (home / path.name).symlink_to(path)
            for program in programs:
                if program in NEEDS_CLASSIFIER and not (home / "runs/classifier/step-200").exists():
                    if not (classifier / "runs/classifier/step-200").exists():
                        sys.exit(f"{program}: expected a classifier that Accelerate has trained; name accelerate and classifier too")
                    shutil.copytree(classifier / "runs/classifier/step-200", home / "runs/classifier/step-200")
                try:
                    print(f"| {program} | {peer} | {outcome(peer, program, home)} |", flush=True)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    failed = True
                    print(f"| {program} | {peer} | **failed** |\n{error}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
