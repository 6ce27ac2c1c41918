"""`python -m muster` is the program muster."""
import os
import sys

from muster._program import program

path = program()
os.execv(path, [path, *sys.argv[1:]])
