"""Prints a number made of all pixels of each picture in a folder, as Pillow reads it. Exits with 77 without Pillow."""

import pathlib
import sys

try:
    import numpy
    from PIL import Image
except ImportError:
    sys.exit(77)

for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    pixels = numpy.asarray(Image.open(path).convert("RGB")).astype(numpy.int64).ravel()
    print(path.name, int((pixels * numpy.arange(1, pixels.size + 1)).sum()))
