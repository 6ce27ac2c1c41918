"""Other programs at a job's ports: who holds them, who scans them, who takes all descriptors."""

import os
import random
import re
import socket

from page import told
from place import expect, read_until, rss, sh
from table import row


def port_said_by(job):
    """The port of the store of a job whose rank prints $MUSTER_STORE."""
    return int(re.search(r":(\d+)", read_until(job, "tcp://")).group(1))


@row(13, "the port is taken", "the holder is named")
def port_taken(place):
    holder = socket.socket()
    holder.bind(("0.0.0.0", 0))
    holder.listen()
    port = holder.getsockname()[1]
    code, _, err = place.run("run", "-q", "-n", "1", "--master-port", str(port), "touch", "started")
    expect(code == 1 and f"process {os.getpid()}" in err and not (place.folder / "started").exists(), err)
    return f"exit code {code}; named process and port"


@row(79, "a rank listens at MASTER_PORT without SO_REUSEADDR", "the card says who holds it")
def held_port(place):
    (place.folder / "serve.py").write_text("import os, socket\nsocket.socket().bind(('', int(os.environ['MASTER_PORT'])))\n")
    code, _, err = place.run("run", "-q", "-n", "1", "python3", "serve.py")
    expect(code == 1 and "Address already in use" in err, err)
    expect(re.search(r"meaning   a port is in use: muster holds MASTER_PORT \d+ for rank 0", err) and "--master-port" not in err, err)
    return "the launcher, for rank 0, and what to set"


@row(16, "the store out of descriptors", "a client is refused, the server lives")
def out_of_descriptors(place):
    run = f"exec {place.muster} run -q -n 1 sh -c 'echo $MUSTER_STORE; sleep 1000'"
    job = place.start("-c", f"ulimit -n 64; {run}", program="sh")
    port = port_said_by(job)
    strangers = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(100)]
    expect(job.poll() is None, "the launcher ended")
    late = socket.create_connection(("127.0.0.1", port), 60)
    greeting = late.recv(8)
    expect(greeting == b"muster1\n", f"greeting {greeting!r}")
    expect(strangers[0].recv(8) == b"muster1\n" and is_dropped(strangers[0]), "the oldest was to be dropped")
    expect(strangers[-1].recv(8) == b"muster1\n" and not is_dropped(strangers[-1]), "the newest was not to be")
    for stranger in strangers:
        stranger.close()
    job.terminate()
    expect(job.wait(timeout=30) == 143, "it did not end")
    return "100 open connections at a limit of 64: the oldest dropped; the job lives and greets the next one"


def is_dropped(stranger):
    """The server has closed it, and not only said nothing."""
    stranger.setblocking(False)
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


@row(17, "port scan and garbage at the store", "dropped, memory bounded")
def garbage(place):
    job = place.start("run", "-q", "-n", "1", *sh("echo $MUSTER_STORE; sleep 1000"))
    port = port_said_by(job)
    before = rss(job.pid)
    chance = random.Random(7)
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), 60) as stranger:
                stranger.sendall(chance.randbytes(chance.choice([0, 1, 63, 64, 65, 100_000])))
        except (ConnectionResetError, BrokenPipeError):
            pass
    half_open = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(300)]
    grown = rss(job.pid) - before
    expect(job.poll() is None and grown < told(17, "grows by less than () MiB") * (1 << 20), f"grew by {grown >> 10} KiB")
    for connection in half_open:
        connection.close()
    job.terminate()
    expect(job.wait(timeout=30) == 143, "it did not end")
    return f"200 garbled and 300 half-open connections: alive, grew by {grown >> 10} KiB"


@row(72, "another user's ./runs, and a link where a log is to be", "refused, nothing is written there")
def not_our_folder(place):
    precious = place.folder / "precious" / "0"
    precious.mkdir(parents=True)
    (place.folder / "run").mkdir()
    (place.folder / "run" / "logs").symlink_to(place.folder / "precious")
    code, _, err = place.run("run", "-q", "-n", "1", "--redirects", "2", "--run-dir", "run", *sh("echo x >&2"))
    expect(code == 1 and "is no link" in err and not list(precious.iterdir()), f"{code} {err}")
    expect(len(list(precious.parent.iterdir())) == 1, "something was written there")
    if os.geteuid() != 0:
        return "the link is refused; another user's folder can only be made by root"
    (place.folder / "runs").mkdir()
    os.chown(place.folder / "runs", 12345, 12345)
    code, _, err = place.run("run", "-q", "-n", "1", "true")
    expect(code == 1 and "/runs' of user 12345" in err, f"{code} {err}")
    expect(not list((place.folder / "runs").iterdir()), "something was written there")
    return "both are refused, exit code 1"
