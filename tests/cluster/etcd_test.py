"""Membership in a real etcd: hosts join and leave, and any of them may be lost, the coordinator too.

    etcd_test.py MUSTER FAKE_NVML [STORE_TEST [ELASTIC_PROBE]]      the program; a stand-in for the driver's library; the
                                                                    stores' conformance suite; a training
"""

import base64
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hosts import HostsCase, cmdline, main, missing, wait_for

MUSTER = ""
STORE_TEST = ""
PROBE = ""
FAKE_NVML = ""


# In front of etcd: PORT UPSTREAM FOLDER. While FOLDER/fail is there, leases are not renewed; every renewal, and
# every refusal of one, is a line of FOLDER/renewed.
PROXY = """
import http.server, pathlib, sys, urllib.error, urllib.request
port, upstream, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fails = self.path == "/v3/lease/keepalive" and (folder / "fail").exists()
        if self.path == "/v3/lease/keepalive":
            with (folder / "renewed").open("a") as file:
                file.write("no\\n" if fails else "yes\\n")
        status, answer = 503, b"no leader"
        if not fails:
            try:
                with urllib.request.urlopen(upstream + self.path, body, 5) as response:
                    status, answer = response.status, response.read()
            except urllib.error.HTTPError as error:
                status, answer = error.code, error.read()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
http.server.ThreadingHTTPServer(("", port), Handler).serve_forever()
"""


def make_authority(folder, name):
    """A certificate that signs others, NAME.crt and NAME.key."""
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
            "basicConstraints=critical,CA:TRUE", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt")


def make_certificate(folder, name, authority, host):
    """A certificate for this host name, for a server and for its clients, NAME.crt and NAME.key."""
    (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out",
            folder / f"{name}.csr")
    openssl("x509", "-req", "-days", "2", "-in", folder / f"{name}.csr", "-CA", folder / f"{authority}.crt", "-CAkey",
            folder / f"{authority}.key", "-CAcreateserial", "-extfile", folder / f"{name}.ext", "-out", folder / f"{name}.crt")


def openssl(*arguments):
    made = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    if made.returncode != 0:
        raise AssertionError(f"openssl {arguments[0]}: {made.stderr}")


class Etcd(HostsCase):
    NAMES = ("etcd", "a", "b", "c")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        etcd = cls.world["etcd"]
        url = f"http://{etcd.address}"
        cls.etcd = etcd.start(
            ["etcd", "--data-dir", str(cls.world.folder / "etcd"), "--listen-client-urls", f"{url}:2379",
             "--advertise-client-urls", f"{url}:2379", "--listen-peer-urls", f"{url}:2380",
             "--initial-advertise-peer-urls", f"{url}:2380", "--initial-cluster", f"default={url}:2380",
             "--log-level", "error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.world.servers.append(cls.etcd)
        cls.endpoint = f"{etcd.address}:2379"
        knock = f"import socket; socket.create_connection(('{etcd.address}', 2379), 1)"
        wait_for(lambda: cls.world["a"].run(["python3", "-c", knock])[0] == 0, 30)
        secret = cls.world.folder / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        cls.secret = str(secret)

    def start(self, host, nnodes, *program, flags=(), endpoint=None, silence=12, **more):
        return self.world[host].start_for(self, [
            MUSTER, "run", "-q", "-n", "1", "--nnodes", nnodes, "--rdzv-backend", "etcd",
            "--rdzv-endpoint", endpoint or self.endpoint, "--rdzv-id", self.id(), "--secret-file", self.secret, "--rdzv-conf",
            f"last_call_timeout=0,keep_alive_interval={silence // 4},keep_alive_max_attempt=4", *flags, *program], seconds=150, **more)

    def ask(self, path, body):
        """What etcd answers."""
        post = "import sys, urllib.request; " \
               "print(urllib.request.urlopen(sys.argv[1], sys.argv[2].encode(), 5).read().decode())"
        code, out, err = self.world["a"].run(["python3", "-c", post, f"http://{self.endpoint}{path}", json.dumps(body)])
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def keys(self):
        """Of this test case's job, each with its lease."""
        begin, end = (base64.b64encode(f"muster/{self.id()}{after}".encode()).decode() for after in "/0")
        return self.ask("/v3/kv/range", {"key": begin, "range_end": end, "keys_only": True}).get("kvs", [])

    def pids_of_ranks(self, agents):
        """Of ranks that say `up` and their number, once all have."""
        said = [agent.stdout.readline() for agent in agents]
        return [int(re.search(r"up (\d+)$", line).group(1)) for line in said]

    def test_hosts_of_a_fixed_job_meet_there_and_leave_nothing(self):
        hosts = [self.start(name, "3", "sh", "-c", "echo $RANK of $WORLD_SIZE at $MASTER_ADDR") for name in "abc"]
        said = []
        for process in hosts:
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            said.append(out)
        self.assertEqual(sorted("".join(said).split("\n"))[1:], [
            f"[{rank}@{name}] {rank} of 3 at {self.world['a'].address}" for rank, name in enumerate("abc")])
        self.assertEqual(self.keys(), [])

    def test_a_failure_is_told_everywhere(self):
        hosts = [self.start(name, "2", "sh", "-c", "[ $RANK = 1 ] && exit 5; sleep 60") for name in "ab"]
        for process in hosts:
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 5, err)
            self.assertIn("rank 1 failed first", err)

    def test_the_coordinator_killed_is_succeeded(self):
        # A world of two may come before that of three, too: it is not to end there.
        killed = self.world.folder / "killed"
        script = f"echo world $WORLD_SIZE; [ $WORLD_SIZE = 2 ] && [ -e {killed} ] && exit 0; sleep 1000"
        first = self.start("a", "1:3", "sh", "-c", script)  # it is there first, so it coordinates
        self.assertIn("world 1", first.stdout.readline())
        others = [self.start(name, "1:3", "sh", "-c", script) for name in "bc"]
        for process in others:
            while "world 3" not in (line := process.stdout.readline()):
                self.assertTrue(line, "it ended")
        killed.touch()
        os.kill(first.pid, signal.SIGKILL)
        for process in others:
            out, err = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn("world 2", out)

    def test_a_host_that_is_cut_off_is_fenced_and_the_others_go_on(self):
        script = "echo world $WORLD_SIZE; [ $WORLD_SIZE = 1 ] && [ $MUSTER_ATTEMPT != 0 ] && exit 0; sleep 1000"
        first = self.start("a", "1:2", "sh", "-c", script)
        self.assertIn("world 1", first.stdout.readline())
        second = self.start("b", "1:2", "sh", "-c", script)
        self.assertIn("world 2", first.stdout.readline())
        try:
            self.world["b"].cut()
            out, err = first.communicate(timeout=100)
            self.assertEqual(first.returncode, 0, err)
            self.assertNotEqual(second.wait(timeout=60), 0)
        finally:
            self.world["b"].mend()

    def test_a_lease_that_is_renewed_late_ends_nothing(self):
        folder = self.world.folder
        self.world["etcd"].start_for(self, [
            "python3", "-c", PROXY, "2381", f"http://{self.endpoint}", str(folder)], seconds=150)
        knock = f"import socket; socket.create_connection(('{self.world['etcd'].address}', 2381), 1)"
        wait_for(lambda: self.world["a"].run(["python3", "-c", knock])[0] == 0, 30)
        renewals = lambda: (folder / "renewed").read_text().split()
        hosts = [self.start(name, "2", "sh", "-c", f"echo up; until [ -e {folder}/over ]; do sleep 0.1; done",
                            endpoint=f"{self.world['etcd'].address}:2381") for name in "ab"]
        for process in hosts:
            self.assertIn("up", process.stdout.readline())
        (folder / "fail").touch()
        wait_for(lambda: renewals().count("no") >= 3 or any(process.poll() is not None for process in hosts), 60)
        (folder / "fail").unlink()
        wait_for(lambda: renewals()[-2:] == ["yes", "yes"] or any(process.poll() is not None for process in hosts), 60)
        (folder / "over").touch()
        for process in hosts:
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)

    def test_an_etcd_that_stands_still_for_half_the_silence_ends_nothing(self):
        over = self.world.folder / "stood still"
        script = f"echo up; until [ -e '{over}' ]; do sleep 0.1; done"
        hosts = [self.start(name, "2", "sh", "-c", script) for name in "ab"]
        for process in hosts:
            self.assertIn("up", process.stdout.readline())
        os.kill(self.etcd.pid, signal.SIGSTOP)
        try:
            time.sleep(6)
        finally:
            os.kill(self.etcd.pid, signal.SIGCONT)
        over.touch()
        for process in hosts:
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, out + err)

    def test_an_etcd_that_stands_still_for_longer_than_the_silence_ends_all_ranks(self):
        hosts = [self.start(name, "2", "sh", "-c", "echo up $$; exec sleep 1000", silence=4) for name in "ab"]
        ranks = self.pids_of_ranks(hosts)
        os.kill(self.etcd.pid, signal.SIGSTOP)
        try:
            for process in hosts:
                out, err = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1, out + err)
            self.assertEqual([cmdline(pid) for pid in ranks], [b"", b""])
        finally:
            os.kill(self.etcd.pid, signal.SIGCONT)

    def test_what_killed_agents_leave_goes_with_a_lease_of_a_minute(self):
        hosts = [self.start(name, "2", "sh", "-c", "echo up $$; exec sleep 1000") for name in "ab"]
        ranks = self.pids_of_ranks(hosts)
        for process in hosts:
            os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: not any(cmdline(pid) for pid in ranks), 30)
        wait_for(lambda: not any(self.world[name].processes() for name in "ab"), 30)  # that could renew it
        leases = {key.get("lease") for key in self.keys()}
        self.assertEqual(len(leases), 1, leases)
        lease = leases.pop()
        self.assertEqual(self.ask("/v3/lease/timetolive", {"ID": lease})["grantedTTL"], "60")
        self.ask("/v3/lease/revoke", {"ID": lease})  # as when its time is over
        self.assertEqual(self.keys(), [])

    def test_the_servers_of_a_list_are_tried_in_turn(self):
        dead = f"{self.world['c'].address}:1"
        hosts = [self.start(name, "2", "sh", "-c", "echo $RANK of $WORLD_SIZE", endpoint=endpoint)
                 for name, endpoint in (("a", f"{dead},{self.endpoint}"), ("b", f"{self.endpoint},{dead}"))]
        for rank, process in enumerate(hosts):
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn(f"{rank} of 2", out)

    def test_a_dead_rank_is_replaced_while_the_others_keep_their_processes(self):
        if not PROBE:
            self.skipTest("no elastic_probe given")
        hosts = [self.start(name, "3", PROBE, "--kill", "1@5", flags=("--on-failure", "replace")) for name in "abc"]
        begun = []
        for process in hosts:
            out, err = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 0, out + err)
            begun += re.findall(r"begin rank (\d) pid (\d+) generation (\d)", out)
        pids = {rank: [pid for _, pid in sorted((generation, pid) for r, pid, generation in begun if r == rank)] for rank in "012"}
        self.assertEqual({rank: len(set(its)) for rank, its in pids.items()}, {"0": 1, "1": 2, "2": 1}, begun)
        self.assertEqual({rank: len(its) for rank, its in pids.items()}, {"0": 2, "1": 2, "2": 2}, begun)
        self.assertEqual(self.keys(), [])

    def test_an_agent_that_is_started_twice_takes_no_part_and_the_job_goes_on(self):
        for nnodes, said in (("2", "the job has its 2 hosts"), ("1:2", ""), ("1:3", "are on one machine: both have GPU-1")):
            with self.subTest(nnodes=nnodes):
                over = self.world.folder / f"over {nnodes}"
                script = f"echo world $WORLD_SIZE; until [ -e '{over}' ]; do sleep 0.1; done"
                hosts = [self.start_with_gpu(name, nnodes, script) for name in "ab"]
                for process in hosts:
                    while "world 2" not in (line := process.stdout.readline()):
                        self.assertTrue(line, "it ended" if line else process.stderr.read())
                keys = len(self.keys())
                again = self.start_with_gpu("b", nnodes, script)
                if said:
                    out, err = again.communicate(timeout=60)
                    self.assertEqual((again.returncode, out), (1, ""), err)
                    self.assertIn(said, err)
                else:  # a spare, which takes the place of a host that is lost
                    wait_for(lambda: len(self.keys()) > keys or again.poll() is not None, 60)
                over.touch()
                for process in [*hosts, again][:2 if said else 3]:
                    out, err = process.communicate(timeout=60)
                    self.assertEqual(process.returncode, 0, err)
                    self.assertEqual(out, "")  # nothing has begun again

    def start_with_gpu(self, host, nnodes, script):
        """One whose host has a GPU."""
        number = "ab".index(host)
        runtime = self.world.folder / f"runtime-{host}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        gpu = f"version=550.54|uuid=GPU-{number}0000000-0000-0000-0000-000000000000,name=Test GPU,total=8589934592,free=8589934592,cc=9.0,pci=00000000:01:00.0"
        return self.start(host, nnodes, "sh", "-c", script, env={
            "MUSTER_NVML_LIBRARY": FAKE_NVML, "FAKE_NVML": gpu, "CUDA_VISIBLE_DEVICES": "0", "MUSTER_RUNTIME_DIR": str(runtime)})

    def test_no_etcd_there(self):
        code, out, err = self.world["a"].run(
            [MUSTER, "run", "-q", "--nnodes", "2", "--rdzv-backend", "etcd",
             "--rdzv-endpoint", f"{self.world['b'].address}:1", "--rdzv-id", "x", "--secret-file", self.secret,
             "--rdzv-conf", "join_timeout=1", "true"])
        self.assertEqual(code, 1)
        self.assertIn("expected an answer of http://", err)

    def start_etcd_over_tls(self):
        """An etcd that only takes clients with a certificate of its authority; the folder of the certificates."""
        folder = self.world.folder / "certificates"
        folder.mkdir()
        make_authority(folder, "authority")
        make_authority(folder, "stranger")
        make_certificate(folder, "server", "authority", "etcd")
        make_certificate(folder, "client", "authority", "client")
        server = self.world["etcd"]
        url, peers = "https://0.0.0.0:2390", f"http://{server.address}:2391"
        log = open(folder / "etcd.log", "w", encoding="utf-8")
        self.addCleanup(log.close)
        server.start_for(self, [
            "etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", url, "--advertise-client-urls", "https://etcd:2390",
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
            "--cert-file", str(folder / "server.crt"), "--key-file", str(folder / "server.key"), "--client-cert-auth",
            "--trusted-ca-file", str(folder / "authority.crt"), "--log-level", "error"], stdout=log, stderr=log)
        knock = "import socket; socket.create_connection(('etcd', 2390), 1)"
        wait_for(lambda: self.world["a"].run(["python3", "-c", knock])[0] == 0, 30)
        return folder

    def test_over_tls_both_sides_show_their_certificates(self):
        if shutil.which("openssl") is None:
            self.skipTest("no openssl")
        folder = self.start_etcd_over_tls()
        client = f",cert={folder}/client.crt,key={folder}/client.key"
        trusting = f"protocol=https,cacert={folder}/authority.crt"

        def start(host, conf, endpoint="etcd:2390"):
            return self.world[host].start_for(self, [
                MUSTER, "run", "-q", "-n", "1", "--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint,
                "--rdzv-id", self.id(), "--secret-file", self.secret, "--rdzv-conf", conf, "sh", "-c", "echo $RANK of $WORLD_SIZE"])

        for what, conf, endpoint in (
                ("another authority", f"protocol=https,cacert={folder}/stranger.crt{client}", "etcd:2390"),
                ("no certificate of the client's", trusting, "etcd:2390"),
                ("another name", trusting + client, f"{self.world['etcd'].address}:2390"),
                ("no TLS", "protocol=http", "etcd:2390")):
            with self.subTest(what):
                refused = start("a", conf + ",join_timeout=1", endpoint)
                out, err = refused.communicate(timeout=60)
                self.assertEqual((refused.returncode, out), (1, ""), err)
                self.assertIn(f"{endpoint}/v3/", err)
        hosts = [start(name, trusting + client) for name in "ab"]
        for rank, process in enumerate(hosts):
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn(f"{rank} of 2", out)

    def test_etcd_is_a_store_like_the_others(self):
        if not STORE_TEST:
            self.skipTest("no store_test given")
        code, out, err = self.world["a"].run([STORE_TEST, "--gtest_filter=*StoreConformance*etcd*"], timeout=120,
                                             env={"MUSTER_TEST_ETCD": f"http://{self.endpoint}"})
        self.assertEqual(code, 0, out[-3000:] + err)
        self.assertRegex(out, r"\[  PASSED  \] 1[0-9] tests")


if __name__ == "__main__":
    MUSTER, FAKE_NVML = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        STORE_TEST = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        PROBE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    why = missing()
    if not why and shutil.which("etcd") is None:
        why = "no etcd (package etcd-server)"
    main(why)
