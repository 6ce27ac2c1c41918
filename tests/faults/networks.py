"""Networks between hosts that break, slow down or are named wrongly."""

import os
import pathlib
import re
import signal
import threading
import time

from hosts import Hosts, cmdline, first_started, missing, wait_for
from page import told
from place import Skip, at_once, expect
from table import row

# The rank that goes on alone looks for the process of the other: the hosts have one list of processes.
GOES_ON = "if [ $WORLD_SIZE = 1 ]; then kill -0 $(cat pid-b) && echo b lives; echo world 1; exit 0; fi; " \
          "echo $$ >pid-$(hostname); echo world $WORLD_SIZE; exec sleep 1000"


class Network:
    """Two hosts with a network between them; one such network at a time."""

    lock = threading.Lock()

    def __enter__(self):
        self.lock.acquire()
        try:
            if why := missing():
                raise Skip(why)
            self.hosts = Hosts(["a", "b"]).__enter__()
            return self.hosts
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, *_):
        self.hosts.__exit__()
        self.lock.release()


def elastic_over(place, hosts, script):
    conf = "last_call_timeout=60,keep_alive_interval=3,keep_alive_max_attempt=4"  # 12 s: a busy machine is not dead
    return hosts["a"].start([place.muster, "run", "-q", "--hosts", "a:1,b:1", "--nnodes", "1:2", "--rdzv-conf", conf,
                             "sh", "-c", script])


def has_ended_its_ranks(host):
    return not any(b"sleep" in cmdline(pid) for pid in host.processes())


def both_run(hosts, job):
    job.stdout.readline(), job.stdout.readline()
    os.kill(int((hosts.folder / "pid-b").read_text()), 0)  # it is the process that A's rank will look for


def goes_on_alone(place, job):
    """A's rank, when that of B is gone. Returns what is said of B's silence."""
    out, err = job.communicate(timeout=90)
    place.hear(out, err)
    expect(job.returncode == 0 and "world 1" in out and "b lives" not in out, out + err)
    said = re.search(r"no sign of life from host b \(10.77.0.2\) for ([\d.]+)s", err)
    expect(said and "is gone; going on without it" in err, err)
    return said


@row(36, "a partition, A|B", "one side goes on, the other is fenced")
def partition(place):
    with Network() as hosts:
        job = elastic_over(place, hosts, GOES_ON)
        both_run(hosts, job)
        start = time.monotonic()
        hosts["b"].cut()
        wait_for(lambda: has_ended_its_ranks(hosts["b"]), 60)
        ended = time.monotonic() - start
        said = goes_on_alone(place, job)
        took = time.monotonic() - start
        expect(float(said[1]) >= told(36, "after () s at least"), f"{said[0]}: B may not have ended its ranks by then")
        return f"B has ended its rank after {ended:.1f} s, A alone after {took:.1f} s"


@row(37, "an asymmetric partition: B hears, is not heard", "the same")
def asymmetric(place):
    with Network() as hosts:
        job = elastic_over(place, hosts, GOES_ON)
        both_run(hosts, job)
        hosts["b"].run(["ip", "route", "add", "blackhole", "10.77.0.1/32"])
        goes_on_alone(place, job)
        expect(has_ended_its_ranks(hosts["b"]), "B has a rank")
        return "A went on alone, B had ended its rank"


@row(38, "a slow link", "no false death")
def slow_link(place):
    with Network() as hosts:
        for host in hosts:
            host.slow_down("64kbit")
        job = elastic_over(place, hosts, "echo world $WORLD_SIZE; sleep 20; exit 0")
        out, err = job.communicate(timeout=120)
        expect(job.returncode == 0 and out.count("world 2") == 2 and "world 1" not in out, out + err)
        return "64 kbit/s for 20 s: both stayed"


@row(54, "the server of tasks on a host is killed", "its tasks end; the host is used again, no retry is spent")
def server_of_tasks_killed(place):
    with Network() as hosts:
        script = "mkdir up 2>/dev/null || exec echo $MUSTER_ATTEMPT; sleep 1000 & sleep 1000"
        run = hosts["a"].start([place.muster, "tasks", "--hosts", "b", "--run-dir", "run", "--sweep", "x=1",
                                 "--", "sh", "-c", script])
        wait_for((hosts.folder / "up").exists, 60)
        server = first_started(pid for pid in hosts["b"].processes() if cmdline(pid).startswith(place.muster.encode()))
        start = time.monotonic()
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: has_ended_its_ranks(hosts["b"]), 60)
        gone = time.monotonic() - start
        at_once(gone)
        out, err = run.communicate(timeout=60)
        place.hear(out, err)
        expect(run.returncode == 0 and "host b is back" in err and "set aside and tried again" in err, out + err)
        logs = [log.read_text() for log in sorted(hosts.folder.glob("run/logs/*/*.log"))]
        expect(logs == ["", "1\n"], str(logs))
        return f"all gone after {gone * 1000:.0f} ms; done there as attempt 1, {time.monotonic() - start:.1f} s after"


@row(40, "the host's name means 127.0.1.1", "an address by the route, and said")
def loopback_name(place):
    with Network() as hosts:
        for host in hosts:
            names = pathlib.Path(f"/etc/netns/{host.namespace}/hosts")
            names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n" + "".join(
                f"{other.address} {other.name}\n" for other in hosts if other is not host))
        secret = hosts.folder / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        flags = ["--nnodes", "2", "--rdzv-endpoint", "a:29400", "--secret-file", str(secret), "-q", "-n", "1"]
        jobs = [hosts[name].start([place.muster, "run", *flags, "--node-rank", str(i), "sh", "-c",
                                   "echo $MASTER_ADDR"]) for i, name in enumerate("ab")]
        ends = [job.communicate(timeout=60) for job in jobs]
        place.hear(*(err for _, err in ends))
        expect(all(job.returncode == 0 for job in jobs), str(ends))
        expect(all("10.77.0.1" in out for out, _ in ends) and "means 127.0.1.1 here" in ends[0][1], str(ends))
        return "MASTER_ADDR 10.77.0.1 on both; warned of /etc/hosts"
