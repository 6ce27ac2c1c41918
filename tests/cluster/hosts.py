"""Hosts for tests: network namespaces on one switch, each with an address, names for the others, and an sshd.

    with Hosts(["a", "b"]) as hosts:
        hosts["a"].run(["muster", "run", "--hosts", "a,b", ...])

Hosts(…, apart=True) also have disks of their own: /tmp, with muster's folder and the one where programs start
(/tmp/work), /var/tmp and /dev/shm. Host.disk is /tmp as the test sees it.

Needs root, iproute2 and openssh-server; `missing()` says what is not there. Everything is undone at the end.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
WORK = "/tmp/work"  # on the disks of hosts that are apart
SKIPPED = 77  # what a test exits with that could not be run here


def missing():
    """Why hosts cannot be made here; empty when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "ssh", "sshd", "ssh-keygen"):
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            return f"no {program} (packages iproute2 and openssh-server)"
    # All that a host is made of, tried once: a container or a chroot may allow some of it only.
    name = f"mt{os.getpid()}x"
    try:
        for command in (["netns", "add", name], ["netns", "exec", name, "unshare", "--uts", "--mount", "true"],
                        ["-n", name, "link", "add", "switch", "type", "bridge"],
                        ["-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other"]):
            tried = subprocess.run(["ip", *command], capture_output=True, text=True)
            if tried.returncode != 0:
                return f"no hosts of our own here: ip {' '.join(command)}: {tried.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return ""


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


class Host:
    def __init__(self, world, name, address, namespace):
        self.world, self.name, self.address, self.namespace = world, name, address, namespace
        self.disk = world.folder / f"disk-{name}"

    def command(self, argv, cwd=WORK):
        """What runs `argv` on this host, under its name; where hosts are apart, in a folder of its disk."""
        if not self.world.apart:
            return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"',
                    self.name, *argv]
        # A checkout below /tmp stays visible.
        enter = 'hostname "$0" && mount --bind "$1/shm" /dev/shm && mount --bind "$1/var" /var/tmp && ' \
                'case "$3" in /tmp/*) mkdir -p "$1${3#/tmp}" && mount --bind "$3" "$1${3#/tmp}";; esac && ' \
                'mount --rbind "$1" /tmp && cd "$2" && shift 3 && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount", "sh", "-c", enter,
                self.name, str(self.disk), str(cwd), str(CHECKOUT), *argv]

    def start(self, argv, **more):
        """A process of this host, its output in pipes."""
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        more.setdefault("stdin", subprocess.DEVNULL)
        env = dict(self.world.environment, **more.pop("env", {}))
        cwd = more.pop("cwd", WORK if self.world.apart else self.world.folder)
        return subprocess.Popen(self.command(argv, cwd), text=True, env=env, cwd="/" if self.world.apart else cwd,
                                start_new_session=True, **more)

    def start_for(self, test, argv, seconds=100, **more):
        """The same for a test case, see end_with."""
        process = self.start(argv, **more)
        end_with(test, process, seconds)
        return process

    def run(self, argv, timeout=100, **more):
        process = self.start(argv, **more)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{argv}: no end in {timeout} s\n{out}\n{err}") from None
        return process.returncode, out, err

    @property
    def link(self):
        return f"{self.namespace}s"  # its end on the switch

    def cut(self):
        """Nothing gets to or from this host any more; nobody is told."""
        self.world.on_switch("ip", "link", "set", self.link, "nomaster")

    def mend(self):
        self.world.on_switch("ip", "link", "set", self.link, "master", "switch")

    def slow_down(self, rate="256kbit"):
        self.world.on_switch("tc", "qdisc", "replace", "dev", self.link, "root", "tbf", "rate", rate, "burst", "16kb",
                             "latency", "2s")

    def processes(self):
        found = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in found if int(pid) not in self.world.daemons]


class Hosts:
    def __init__(self, names, apart=False):
        self.names = list(names)
        self.apart = apart
        self.prefix = f"mt{os.getpid()}"
        self.hosts = {}
        self.daemons = set()
        self.servers = []
        self.switch = self.prefix + "sw"

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-hosts-", dir="/var" if self.apart else None))
        self.environment = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": str(self.folder),
                            "MUSTER_RUNTIME_DIR": str(self.folder / "runtime"), "CUDA_VISIBLE_DEVICES": ""}
        (self.folder / "runtime").mkdir(mode=0o700)
        if self.apart:
            self.environment["HOME"] = "/tmp/home"
            del self.environment["MUSTER_RUNTIME_DIR"]
        try:
            self.make_network()
            if self.apart:
                self.make_disks()
            self.start_sshds()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.kill()
            server.wait()
        for host in self.hosts.values():
            for pid in subprocess.run(["ip", "netns", "pids", host.namespace], capture_output=True,
                                      text=True).stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)
            shutil.rmtree(f"/etc/netns/{host.namespace}", ignore_errors=True)
        subprocess.run(["ip", "netns", "del", self.switch], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __getitem__(self, name):
        return self.hosts[name]

    def __iter__(self):
        return iter(self.hosts.values())

    def on_switch(self, *argv):
        subprocess.run(["ip", "netns", "exec", self.switch, *argv], check=True, capture_output=True, text=True)

    def make_network(self):
        ip("netns", "add", self.switch)
        self.on_switch("ip", "link", "add", "switch", "type", "bridge")
        self.on_switch("ip", "link", "set", "switch", "up")
        for number, name in enumerate(self.names):
            self.hosts[name] = Host(self, name, f"10.77.0.{number + 1}", f"{self.prefix}h{number}")
        names = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in self)
        for host in self:
            self.connect(host)
            os.makedirs(f"/etc/netns/{host.namespace}", exist_ok=True)
            pathlib.Path(f"/etc/netns/{host.namespace}/hosts").write_text(names)

    def connect(self, host):
        """Makes the host's network, with its address, on the switch."""
        ip("netns", "add", host.namespace)
        ip("-n", self.switch, "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns",
           host.namespace)
        self.on_switch("ip", "link", "set", host.link, "master", "switch", "up")
        for link in ("lo", "eth0"):
            ip("-n", host.namespace, "link", "set", link, "up")
        ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        ip("-n", host.namespace, "route", "add", "default", "dev", "eth0")

    def make_disks(self):
        for host in self:
            for name in ("home", "shm", "var", "work"):
                (host.disk / name).mkdir(parents=True)

    def start_sshds(self):
        os.makedirs("/run/sshd", exist_ok=True)
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)], check=True)
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nPasswordAuthentication no\n"
            "MaxStartups 200\n")
        (self.folder / "ssh_config").write_text(
            f"Host *\n  IdentityFile {self.folder}/user_key\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n  User root\n"
            "Host alias\n  HostName 10.77.0.2\n")
        self.environment["MUSTER_SSH"] = f"ssh -F {self.folder}/ssh_config"
        sshd = shutil.which("sshd", path="/usr/sbin:/sbin:" + os.environ["PATH"])
        for host in self:
            server = subprocess.Popen(host.command([sshd, "-D", "-f", str(self.folder / "sshd_config"), "-E",
                                                    str(self.folder / f"sshd-{host.name}.log")]), cwd="/")
            self.servers.append(server)
            self.daemons.add(server.pid)
        for host in self:
            wait_for(lambda host=host: host.run(["sh", "-c", "ss -ltn | grep -q :22"])[0] == 0, 60)


def cmdline(pid):
    """A process's program and arguments, a zero byte after each; nothing when it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def first_started(pids):
    """The process that was started first: its number says nothing, as numbers begin anew."""
    return min(pids, key=lambda pid: int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]))


def end_with(test, process, seconds=100):
    """The process is killed if the test case ends before it does, or when the time is over."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()

    def end():
        timer.cancel()
        process.kill()
        process.communicate()

    test.addCleanup(end)


def wait_for(condition, seconds=60):
    """True as soon as the condition is; raises when it never is."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen within %d s" % seconds)
        time.sleep(0.02)
    return True


class HostsCase(unittest.TestCase):
    """Test cases that share hosts of these names."""

    NAMES = ("a", "b", "c")
    APART = False  # disks of their own

    @classmethod
    def setUpClass(cls):
        cls.world = Hosts(cls.NAMES, cls.APART).__enter__()
        cls.addClassCleanup(cls.world.__exit__)

    def nothing_is_left(self, seconds=30):
        wait_for(lambda: not any(host.processes() for host in self.world), seconds)


def main(why):
    """Runs the program's test cases, or says why they cannot be."""
    if why:
        print("skipped:", why)
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
