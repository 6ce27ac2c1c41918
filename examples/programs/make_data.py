#!/usr/bin/env python3
"""make_data.py FOLDER: writes there what the programs of this folder read, from the repository's `data`. It needs no packages.

  pictures/train/<digit>/*.png, pictures/test/…    the handwritten digits, 32×32, RGB
  pictures/odd/<even or odd>/*.png, pictures/odd_test/…   the same, in two classes
  shards/train-000.tar … 007.tar                   the training pictures, in WebDataset's layout: <number>.png, .cls
  text.bin                                         Shakespeare, a character a token, uint16
  digits.csv.gz                                    the digits as a table, as they are in `data`
  houses.csv                                       invented houses and their prices
"""
import csv
import gzip
import io
import pathlib
import random
import shutil
import struct
import sys
import tarfile
import zlib

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"
SIDE = 32
SCALE = SIDE // 8
SHARDS = 8
HOUSES = 2000


def chunk(kind, content):
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(pixels):
    """A picture of 8×8 values 0..16, each as a square."""
    rows = []
    for top in range(0, 64, 8):
        colours = [bytes([15 * value, 15 * value, 240 - 15 * value]) for value in pixels[top:top + 8]]
        rows += [b"\0" + b"".join(colour * SCALE for colour in colours)] * SCALE
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def digits():
    """(number, digit, picture) of each."""
    with gzip.open(DATA / "digits.csv.gz", "rt", encoding="ascii") as lines:
        for number, line in enumerate(lines):
            *pixels, digit = map(int, line.split(","))
            yield number, digit, png(pixels)


def write_picture(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_pictures(folder):
    for number, digit, picture in digits():
        is_test = number % 5 == 4
        parity = "odd" if digit % 2 else "even"
        name = f"{number:04}.png"
        write_picture(folder / ("test" if is_test else "train") / str(digit) / name, picture)
        write_picture(folder / ("odd_test" if is_test else "odd") / parity / name, picture)


def add_file(shard, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    shard.addfile(entry, io.BytesIO(content))


def write_shards(folder):
    folder.mkdir(parents=True, exist_ok=True)
    shards = [tarfile.open(folder / f"train-{number:03}.tar", "w") for number in range(SHARDS)]
    train = [digit for digit in digits() if digit[0] % 5 != 4]
    for place, (number, digit, picture) in enumerate(train):
        shard = shards[place % SHARDS]
        add_file(shard, f"{number:04}.png", picture)
        add_file(shard, f"{number:04}.cls", str(digit).encode())
    for shard in shards:
        shard.close()


def write_text(path):
    text = gzip.decompress((DATA / "shakespeare.txt.gz").read_bytes()).decode()
    tokens = {character: token for token, character in enumerate(sorted(set(text)))}
    path.write_bytes(struct.pack(f"<{len(text)}H", *(tokens[character] for character in text)))


def write_houses(path):
    rng = random.Random(1)
    with open(path, "w", newline="", encoding="ascii") as file:
        table = csv.writer(file)
        table.writerow(["area", "rooms", "year", "metres_to_station", "price"])
        for _ in range(HOUSES):
            area, rooms = rng.uniform(30, 250), rng.randint(1, 8)
            year, way = rng.randint(1900, 2025), rng.expovariate(1 / 1500)
            price = 3 * area + 15 * rooms + 0.8 * (year - 1900) - 0.02 * way + rng.gauss(0, 20)
            table.writerow([f"{area:.1f}", rooms, year, f"{way:.0f}", f"{price:.1f}"])


def main(folder):
    write_pictures(folder / "pictures")
    write_shards(folder / "shards")
    write_text(folder / "text.bin")
    write_houses(folder / "houses.csv")
    shutil.copy(DATA / "digits.csv.gz", folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
