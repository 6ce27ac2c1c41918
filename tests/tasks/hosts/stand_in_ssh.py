"""Stands in for ssh: a "host" is this machine with a runtime folder and a GPU of its own.

    stand_in_ssh.py FOLDER FAKE_NVML HOST COMMAND

FOLDER/HOST is the host's. What lies there when a connection is made says how it is:

    down      nothing answers, as long as the file is there
    silent    when the connection's end here is killed, the other one is told nothing, as in a network that is cut
    gpu       the digit of its GPU's UUID, instead of its name's last character
    machine   its GPUs as FAKE_NVML has them, read each time that the driver is asked

FOLDER/HOST/connections has a line a connection: the process id of its end here.
"""

import os
import pathlib
import subprocess
import sys
import threading

FOLDER, FAKE_NVML, HOST, COMMAND = sys.argv[1:]
PLACE = pathlib.Path(FOLDER) / HOST


def environment():
    gpu = (PLACE / "gpu").read_text().strip() if (PLACE / "gpu").exists() else str(ord(HOST[-1]) % 10)
    machine = (f"version=550.54|uuid=GPU-{gpu}0000000-0000-4000-8000-000000000000,name=Test GPU,total=8589934592,"
               "free=8589934592,cc=9.0,pci=00000000:01:00.0")
    if (PLACE / "machine").exists():
        machine = f"@{PLACE}/machine"
    return dict(os.environ, MUSTER_RUNTIME_DIR=str(PLACE), MUSTER_NVML_LIBRARY=FAKE_NVML, FAKE_NVML=machine)


def carry(source, sink):
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(sink, data):]
    except OSError:
        pass


def main():
    PLACE.mkdir(mode=0o700, exist_ok=True)
    with open(PLACE / "connections", "a", encoding="ascii") as connections:
        connections.write(f"{os.getpid()}\n")
    if (PLACE / "down").exists():
        print("connect to host: Connection refused", file=sys.stderr)
        return 255
    command = subprocess.Popen(["sh", "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(),
                               start_new_session=True)
    network = None
    if (PLACE / "silent").exists():  # somebody else has the ends of its pipes open too
        ends = [command.stdin.fileno(), command.stdout.fileno()]
        network = subprocess.Popen(["sleep", "60"], pass_fds=ends, start_new_session=True, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)

    def forth():
        carry(0, command.stdin.fileno())
        if network is not None:
            network.kill()
        command.stdin.close()

    threading.Thread(target=forth, daemon=True).start()
    carry(command.stdout.fileno(), 1)
    return command.wait()


sys.exit(main())
