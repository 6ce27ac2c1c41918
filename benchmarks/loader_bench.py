#!/usr/bin/env python3
"""Samples a second of muster's loader, LibTorch's (torch::data) and PyTorch's DataLoader: the same files, the same
transforms, as many workers, in turns. Each number is the best of the rounds; the ratios come last. Pictures come by
torch::data in two ways: with muster's data set and transforms ("torch::data"), and with LibTorch's own operations over
whole pictures ("libtorch ops"). Collating: microseconds of processor time a picture of 224x224 float32, by size of
batch; pictures are made at their place in the batch, or elsewhere and copied.

    loader_bench.py LOADER_BENCH [--workers 2] [--rounds 3] [--seconds 3]

Tokens: windows of 1024 out of a file of uint16, at random. Pictures: JPEGs of 500x375 to 224x224 by
RandomResizedCrop, flip, normalise. With Pillow in this Python (pip install --target FOLDER pillow; PYTHONPATH=FOLDER) it
decodes and crops them, as torchvision does, and the rest is torch; without, pictures are muster's alone.
"""

import argparse
import io
import math
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import time

import numpy
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

try:
    from PIL import Image
except ImportError:
    Image = None

CONTEXT, SIDE = 1024, 224
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Tokens(Dataset):
    """As people write it (nanoGPT): a memory map, and two windows made int64."""

    def __init__(self, path):
        self.tokens = numpy.memmap(path, dtype=numpy.uint16, mode="r")

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index):
        begin = random.randrange(len(self.tokens) - CONTEXT)
        window = torch.from_numpy(self.tokens[begin:begin + CONTEXT + 1].astype(numpy.int64))
        return window[:-1], window[1:]


def crop_of(width, height):
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


class Pictures(Dataset):
    """As torchvision's ImageFolder with its transforms for PIL images does it."""

    def __init__(self, path):
        self.files = sorted(pathlib.Path(path).glob("*/*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        with open(file, "rb") as opened:
            image = Image.open(opened).convert("RGB")
        image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=crop_of(*image.size))
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous()
        if random.random() < 0.5:
            pixels = pixels.flip(-1)
        return pixels.float().div(255).sub_(MEAN).div_(DEVIATION), self.classes.index(file.parent.name)


def python_rate(dataset, args):
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True,
                        persistent_workers=True)
    warm, batches, samples, begin = 4, 0, 0, time.perf_counter()
    while True:
        for batch in loader:
            batches += 1
            if batches == warm:
                begin = time.perf_counter()
            elif batches > warm:
                samples += batch[0].shape[0]
                if time.perf_counter() - begin > args.seconds:
                    return samples / (time.perf_counter() - begin)


def bench(args, *arguments):
    command = [args.loader_bench, *arguments, "--workers", str(args.workers), "--batch-size", str(args.batch_size),
               "--seconds", str(args.seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return [float(number) for number in done.stdout.split()]


def some_jpeg(number):
    """A photo's likeness: smooth shapes and some noise, so that it is about as hard to decode (80 kB)."""
    rng = numpy.random.default_rng(number)
    coarse = torch.from_numpy(rng.random((1, 3, 12, 16), dtype=numpy.float32))
    smooth = F.interpolate(coarse, (375, 500), mode="bicubic").clamp(0, 1)[0]
    noisy = smooth * 220 + torch.from_numpy(rng.normal(0, 12, (1, 375, 500)).astype(numpy.float32))
    out = io.BytesIO()
    Image.fromarray(noisy.clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()).save(out, "JPEG", quality=85)
    return out.getvalue()


def write_pictures(folder, shards, count=400, copies=10):
    """Each several times, so that an epoch is long: at its end workers have nothing to do."""
    for s in range(8):
        with tarfile.open(shards / f"{s}.tar", "w") as tar:
            for i in range(s, count, 8):
                data = some_jpeg(i)
                place = folder / f"class{i % 10}"
                place.mkdir(parents=True, exist_ok=True)
                first = place / f"{i:05}-0.jpg"
                first.write_bytes(data)
                for copy in range(copies):
                    if copy > 0:
                        os.link(first, place / f"{i:05}-{copy}.jpg")
                    for ending, content in ("jpg", data), ("cls", str(i % 10).encode()):
                        info = tarfile.TarInfo(f"{i:05}-{copy}.{ending}")
                        info.size = len(content)
                        tar.addfile(info, io.BytesIO(content))


def table(name, rounds, runners):
    """Runs all in turns and prints the best of each."""
    best = {}
    for _ in range(rounds):
        for who, run in runners.items():
            best[who] = max(best.get(who, 0), run())
    print(f"{name:10}" + "".join(f"  {who} {rate:9.0f}/s" for who, rate in best.items()), flush=True)
    return best


def collate_table(args):
    """The least of the rounds, in turns."""
    ways = {"made in place": [], "copied": ["--copied"], "torch::data": ["--loader", "torch"],
            "torch::data, copied": ["--loader", "torch", "--copied"]}
    for size in 16, 64, 256:
        sized = argparse.Namespace(**vars(args) | {"batch_size": size})
        least = {}
        for _ in range(args.rounds):
            for way, flags in ways.items():
                least[way] = min(least.get(way, (math.inf, 0)), tuple(bench(sized, "collate", *flags)[2:]))
        print(f"collate {size:4}" + "".join(f"  {way} {us:.1f} us {faults:.0f} faults" for way, (us, faults) in least.items())
              + f"  torch::data / made in place {least['torch::data'][0] / least['made in place'][0]:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loader_bench")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="muster-loader-") as scratch:
        scratch = pathlib.Path(scratch)
        tokens = scratch / "tokens.bin"
        numpy.random.default_rng(0).integers(0, 50000, 20_000_000).astype(numpy.uint16).tofile(tokens)
        found = {"tokens": table("tokens", args.rounds, {
            "muster": lambda: bench(args, "tokens", tokens)[0],
            "torch::data": lambda: bench(args, "tokens", tokens, "--loader", "torch")[0],
            "python": lambda: python_rate(Tokens(tokens), args)})}
        if Image is None:
            print("pictures: this Python has no Pillow to write and decode them with", file=sys.stderr)
        else:
            folder, shards = scratch / "pictures", scratch / "shards"
            folder.mkdir(), shards.mkdir()
            write_pictures(folder, shards)
            found["pictures"] = table("pictures", args.rounds, {
                "muster": lambda: bench(args, "pictures", folder)[0],
                "shards": lambda: bench(args, "shards", shards)[0],
                "torch::data": lambda: bench(args, "pictures", folder, "--loader", "torch")[0],
                "libtorch ops": lambda: bench(args, "pictures", folder, "--loader", "torch", "--plain")[0],
                "python": lambda: python_rate(Pictures(folder), args)})
            # ColorJitter and RandAugment, of pictures in the workers and of batches in the loop.
            table("changes", args.rounds, {where: lambda where=where: bench(args, "pictures", folder, "--changes", where)[0]
                                           for where in ("samples", "batches")})
            # A step that takes twice as long as the workers need for a batch.
            step = 2e3 * args.batch_size / found["pictures"]["muster"]
            stall = min(bench(args, "pictures", folder, "--step-ms", str(step))[1] for _ in range(args.rounds))
            print(f"stall      {100 * stall:.2f} % of steps of {step:.0f} ms")
        collate_table(args)
        for name, best in found.items():
            others = {who: rate for who, rate in best.items() if who in ("torch::data", "libtorch ops", "python")}
            print(f"{name:10}  muster / " + "  muster / ".join(f"{who} {best['muster'] / rate:.2f}" for who, rate in others.items()))


if __name__ == "__main__":
    main()
