"""Runs a command whose standard input and output take a time each way, as over a slow link of any width.

    slow_link.py SECONDS COMMAND ...
"""

import os
import queue
import subprocess
import sys
import threading
import time

DELAY = float(sys.argv[1])


def carry(source, sink):
    """What is read is written DELAY later, however much is on the way."""
    on_the_way = queue.Queue()

    def write():
        while True:
            at, data = on_the_way.get()
            time.sleep(max(0.0, at - time.monotonic()))
            try:
                while data:
                    data = data[os.write(sink, data):]
            except OSError:
                return

    threading.Thread(target=write, daemon=True).start()
    while data := os.read(source, 65536):
        on_the_way.put((time.monotonic() + DELAY, data))
    time.sleep(2 * DELAY)  # what is on the way arrives


def main():
    command = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def forth():
        carry(0, command.stdin.fileno())
        command.stdin.close()

    threading.Thread(target=forth, daemon=True).start()
    carry(command.stdout.fileno(), 1)
    return command.wait()


sys.exit(main())
