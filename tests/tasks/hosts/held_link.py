"""Runs a command whose output is held back from the first task on that is sent to it, until so many have begun.

    held_link.py COUNT COMMAND ...

A task that has begun is a file begun-* in this folder.
"""

import glob
import os
import subprocess
import sys
import threading
import time

COUNT = int(sys.argv[1])
MARK = b"begun-"  # in the script of every task
is_sent = threading.Event()


def carry(source, sink, before_write):
    before = b""
    while data := os.read(source, 65536):
        before_write(before + data)
        before = data[-len(MARK):]
        while data:
            data = data[os.write(sink, data):]


def note_task(data):
    if MARK in data:
        is_sent.set()


def wait_for_all(_):
    while is_sent.is_set() and len(glob.glob("begun-*")) < COUNT:
        time.sleep(0.01)


def main():
    command = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def forth():
        carry(0, command.stdin.fileno(), note_task)
        command.stdin.close()

    threading.Thread(target=forth, daemon=True).start()
    carry(command.stdout.fileno(), 1, wait_for_all)
    return command.wait()


sys.exit(main())
