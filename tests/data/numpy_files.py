"""Saves an array of every plain dtype in C and Fortran order, and prints of each: file, torch's type, a number made of all
values in order. Exits with 77 without numpy."""

import sys

try:
    import numpy
except ImportError:
    sys.exit(77)

TYPES = {"bool": "Bool", "int8": "Char", "uint8": "Byte", "int16": "Short", "uint16": "UInt16", "int32": "Int",
         "uint32": "UInt32", "int64": "Long", "uint64": "UInt64", "float16": "Half", "float32": "Float",
         "float64": "Double", "complex64": "ComplexFloat", "complex128": "ComplexDouble"}
values = numpy.arange(60).reshape(3, 4, 5)
weights = numpy.arange(1, 61).reshape(3, 4, 5)


def save(name, array, kind, **options):
    with open(f"{sys.argv[1]}/{name}", "wb") as file:
        numpy.lib.format.write_array(file, array, **options)
    print(name, kind, int((array.real.astype(float) * weights).sum()))


for name, kind in TYPES.items():
    array = (values % 2 if name == "bool" else values).astype(name)
    save(f"{name}.npy", array, kind)
    save(f"{name}-fortran.npy", numpy.asfortranarray(array), kind)
for version in (2, 0), (3, 0):
    save(f"version{version[0]}.npy", values, "Long", version=version)
