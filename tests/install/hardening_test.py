"""What is built is hard to take over: a protected stack, checked calls of the C library, tables of addresses that are
written before the program runs and never again, and an address that differs from start to start.

    hardening_test.py FILE...      programs and libraries, and archives (.a) of their own objects alone: what is linked
                                   into a program besides may have been compiled otherwise

A FILE may be a pattern. Exits with 77 where none is there.
"""

import glob
import pathlib
import re
import struct
import sys
import unittest

LINKED = []
ARCHIVES = []

LOAD, DYNAMIC, STACK, RELRO = 1, 2, 0x6474E551, 0x6474E552  # kinds of segments
STRING_TABLE, STRINGS_SIZE, FLAGS, FLAGS_1 = 5, 10, 30, 0x6FFFFFFB  # tags of the dynamic section
BIND_NOW, NOW = 8, 1


class Elf:
    """Source: elf(5)."""

    def __init__(self, path):
        self.bytes = pathlib.Path(path).read_bytes()
        if self.bytes[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"expected a 64-bit little-endian ELF file, got '{path}'")
        self.type, = struct.unpack_from("<H", self.bytes, 16)
        start, = struct.unpack_from("<Q", self.bytes, 32)
        size, count = struct.unpack_from("<HH", self.bytes, 54)
        self.segments = [struct.unpack_from("<IIQQQQQQ", self.bytes, start + i * size) for i in range(count)]
        self.dynamic = dict(self.dynamic_entries())

    def segment(self, kind):
        return next((segment for segment in self.segments if segment[0] == kind), None)

    def dynamic_entries(self):
        _, _, offset, _, _, size, _, _ = self.segment(DYNAMIC)
        for at in range(offset, offset + size, 16):
            yield struct.unpack_from("<qQ", self.bytes, at)

    def names(self):
        """Of the symbols that it has of others, and offers."""
        address = self.dynamic[STRING_TABLE]
        offset = next(address - s[3] + s[2] for s in self.segments if s[0] == LOAD and s[3] <= address < s[3] + s[5])
        return self.bytes[offset:offset + self.dynamic[STRINGS_SIZE]].split(b"\0")


def names_in(path):
    if path in ARCHIVES:
        return set(re.findall(rb"\b__\w+\b", pathlib.Path(path).read_bytes()))
    return set(Elf(path).names())


class Hardening(unittest.TestCase):
    def for_each(self, files, check):
        for path in files:
            with self.subTest(path):
                check(path)

    def test_addresses_are_bound_at_the_start_and_read_only_then(self):
        def check(path):
            elf = Elf(path)
            self.assertIsNotNone(elf.segment(RELRO))
            self.assertTrue(elf.dynamic.get(FLAGS, 0) & BIND_NOW or elf.dynamic.get(FLAGS_1, 0) & NOW)
        self.for_each(LINKED, check)

    def test_it_can_lie_at_any_address(self):
        self.for_each(LINKED, lambda path: self.assertEqual(Elf(path).type, 3, "ET_DYN"))

    def test_the_stack_holds_no_code(self):
        self.for_each(LINKED, lambda path: self.assertEqual(Elf(path).segment(STACK)[1] & 1, 0))

    def test_the_stack_is_protected(self):
        self.for_each([*LINKED, *ARCHIVES], lambda path: self.assertTrue(b"__stack_chk_fail" in names_in(path)))

    def test_calls_of_the_c_library_are_checked(self):
        def check(path):
            checked = [name for name in names_in(path) if re.fullmatch(rb"__(read|pread|poll|memcpy|snprintf)_chk", name)]
            self.assertTrue(checked, "none of them is")
        self.for_each(ARCHIVES, check)


if __name__ == "__main__":
    files = [path for given in sys.argv[1:] for path in (glob.glob(given) if "*" in given else [given])]
    if not files:
        print("skipped: none of these is built:", *sys.argv[1:])
        sys.exit(77)
    ARCHIVES = [path for path in files if path.endswith(".a")]
    LINKED = [path for path in files if path not in ARCHIVES]
    del sys.argv[1:]
    unittest.main(verbosity=2)
