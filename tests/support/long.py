"""What `make test` leaves to `make test-long`, which runs the same scripts with MUSTER_TEST_LONG=1: whole tests, marked
@long, and all but some of the cases of a table."""
import os
import unittest

IS_LONG = os.environ.get("MUSTER_TEST_LONG") == "1"

long = unittest.skipUnless(IS_LONG, "left to make test-long")


def some_of(cases, *indices):
    """All cases, or those of these indices."""
    return cases if IS_LONG else [cases[index] for index in indices]
