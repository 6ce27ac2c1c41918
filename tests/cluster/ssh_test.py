"""`muster run --hosts` with real sshds on hosts with networks of their own.

    ssh_test.py MUSTER      the program
"""

import os
import pathlib
import signal
import sys
import time
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "support")]
import time_limit
from hosts import HostsCase, cmdline, main, missing, wait_for

MUSTER = ""
PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python"
SAY = 'echo "$RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK, $MASTER_ADDR"'


class Ssh(HostsCase):
    def run_on(self, hosts, *program, flags=(), timeout=100, **more):
        return self.world["a"].run([MUSTER, "run", "-q", "--hosts", hosts, *flags, *program], timeout=timeout, **more)

    def start_on(self, hosts, *program, flags=()):
        return self.world["a"].start_for(self, [MUSTER, "run", "-q", "--hosts", hosts, *flags, *program])

    def test_one_command_starts_all_hosts(self):
        code, out, err = self.run_on("a:1,b:2,c:1", "sh", "-c", SAY)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), [
            "[0@a] 0 of 4, local 0 of 1, host 0, 10.77.0.1",
            "[1@b] 1 of 4, local 0 of 2, host 1, 10.77.0.1",
            "[2@b] 2 of 4, local 1 of 2, host 1, 10.77.0.1",
            "[3@c] 3 of 4, local 0 of 1, host 2, 10.77.0.1"])

    def test_the_plan_for_all_hosts_can_be_seen_first(self):
        code, out, err = self.world["a"].run([MUSTER, "plan", "--hosts", "a:1,b:2"], env={"MUSTER_CPU_SLOTS": "3"})
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"0 +a +0 +CPU slot 0 .*\n +1 +b +0 +CPU slot 0 .*\n +2 +b +1 +CPU slot 1 ")
        code, one_each, err = self.world["a"].run([MUSTER, "plan", "--hosts", "b,c"], env={"MUSTER_CPU_SLOTS": "3"})
        self.assertEqual((code, one_each.count("CPU slot 2  ")), (0, 2), one_each + err)
        (self.world.folder / "three.txt").write_text("a slots=1\nb slots=2\n")
        code, again, err = self.world["a"].run([MUSTER, "run", "--hostfile", "three.txt", "--dry-run", "touch", "started"],
                                               env={"MUSTER_CPU_SLOTS": "3"})
        self.assertEqual((code, again), (0, out), err)
        self.assertFalse((self.world.folder / "started").exists())
        code, out, err = self.world["a"].run([MUSTER, "plan", "--hosts", "a:1,10.77.0.99:1"])
        self.assertEqual((code, out), (1, ""))
        self.assertIn("host 10.77.0.99: expected", err)

    def test_a_shell_that_greets_is_no_part_of_the_answer(self):
        ssh = self.world.folder / "greeting_ssh"
        ssh.write_text('#!/bin/sh\necho "Welcome to $1 {"\nexec $MUSTER_SSH -T -o BatchMode=yes "$@"\n')
        ssh.chmod(0o755)
        code, out, err = self.world["a"].run([MUSTER, "plan", "--hosts", "b:1,c:1", "--ssh", str(ssh)], env={"MUSTER_CPU_SLOTS": "2"})
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"0 +b +0 +CPU slot 0 .*\n +1 +c +0 +CPU slot 0 ")

    def test_an_ssh_that_ends_too_early_is_named(self):
        ssh = self.world.folder / "silent_ssh"
        ssh.write_text('#!/bin/sh\n[ "$1" = c ] && exit 0\nexec $MUSTER_SSH -T -o BatchMode=yes "$@"\n')
        ssh.chmod(0o755)
        code, _, err = self.run_on("b:1,c:1", "true", flags=("--ssh", str(ssh)))
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"host c: ssh ended with exit code 0 before the agent there had joined; check that `.*silent_ssh c echo hello` prints hello")

    def test_a_host_without_muster_is_told_what_to_do(self):
        flags = ("--remote-muster", "/opt/none/muster")
        code, _, err = self.run_on("b:1", "true", flags=flags)
        self.assertEqual(code, 127, err)
        self.assertIn("host b: its agent ended with exit code 127 before it had joined; muster is not at that path there "
                      "(--remote-muster PATH names it), or the program is missing", err)
        code, _, err = self.world["a"].run([MUSTER, "plan", "--hosts", "b:1", *flags])
        self.assertIn("got exit code 127; muster is not at that path there", err)
        code, _, err = self.run_on("10.77.0.99:1", "true", flags=("--local-addr", "10.77.0.1"))
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"ssh ended with exit code 255 before .*; check that `.* 10.77.0.99 echo hello` prints hello")

    @unittest.skipIf(os.environ.get("MUSTER_TEST_SANITIZE"), "a Python would have to preload the sanitizer's library")
    def test_python_spawns_a_function_on_several_hosts(self):
        script = self.world.folder / "spawn.py"
        script.write_text("import muster, os\n"
                          "def where(x): return muster.rank(), os.environ['GROUP_RANK'], x\n"
                          "if __name__ == '__main__':\n"
                          "    library = {'MUSTER_LIBRARY': os.environ['MUSTER_LIBRARY']}\n"  # as if it were installed there
                          "    print(muster.spawn(where, args=(7,), hosts={'a': 1, 'b': 2}, env=library, quiet=True))\n")
        library = pathlib.Path(MUSTER).parents[1] / "lib/libmuster.so.0"
        code, out, err = self.world["a"].run([sys.executable, "-B", str(script)],
                                             env={"MUSTER_PROGRAM": MUSTER, "MUSTER_LIBRARY": str(library), "PYTHONPATH": str(PACKAGE)})
        self.assertEqual((code, out), (0, "[(0, '0', 7), (1, '1', 7), (2, '1', 7)]\n"), err)

    def test_the_launcher_need_not_be_one_of_them(self):
        code, out, err = self.run_on("b:1,c:1", "sh", "-c", SAY)
        self.assertEqual(code, 0, err)
        self.assertIn("[0@b] 0 of 2, local 0 of 1, host 0, 10.77.0.2", out)

    def test_a_name_that_only_ssh_knows(self):
        code, out, err = self.run_on("alias:1", "sh", "-c", SAY)
        self.assertEqual(code, 0, err)
        self.assertIn("10.77.0.2", out)

    def test_a_hostfile(self):
        (self.world.folder / "hosts.txt").write_text("# two hosts\na slots=1\nb slots=2 max_slots=4\n")
        code, out, err = self.world["a"].run([MUSTER, "run", "-q", "--hostfile", "hosts.txt", "sh", "-c", SAY])
        self.assertEqual(code, 0, err)
        self.assertEqual(len(out.splitlines()), 3)

    def test_arguments_are_bytes(self):
        code, out, err = self.run_on("a:1,b:1", "sh", "-c", "printf %s \"$1\" | od -An -tx1", "sh", b"\xff\xc3\xa9 \xe9")
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[0@a]  ff c3 a9 20 e9", "[1@b]  ff c3 a9 20 e9"])

    def test_environment_is_chosen_and_secrets_stay(self):
        code, out, err = self.run_on("b:1", "sh", "-c", "env; cat /proc/$PPID/cmdline | tr '\\0' ' '",
                                     flags=["--env", "MINE=1"],
                                     env={"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "hidden", "LC_ALL": "C"})
        self.assertEqual(code, 0, err)
        self.assertIn("NCCL_DEBUG=INFO", out)
        self.assertIn("MINE=1", out)
        self.assertNotIn("hidden", out)
        self.assertNotRegex(out.replace(os.environ.get("LS_COLORS", "\0"), ""), r"\b[0-9a-f]{64}\b")

    def test_libraries_are_told_the_interface_to_the_others(self):
        say = ["sh", "-c", 'echo "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"']
        code, out, err = self.run_on("a:1,b:1", *say)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[0@a] eth0 =eth0", "[1@b] eth0 =eth0"])
        code, out, err = self.run_on("a:1,b:1", *say, env={"GLOO_SOCKET_IFNAME": "lo"})
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[0@a] lo =eth0", "[1@b] lo =eth0"])

    def test_standard_input_is_rank_0s(self):
        code, out, err = self.run_on("b:1,c:1", "sh", "-c", "[ $RANK = 0 ] && cat || true",
                                     stdin=open(pathlib.Path(__file__)))
        self.assertEqual(code, 0, err)
        self.assertIn("[0@b] " + pathlib.Path(__file__).read_text().splitlines()[0], out)

    def test_a_failure_is_on_one_card(self):
        code, out, err = self.run_on("a:1,b:1", "sh", "-c", "[ $RANK = 1 ] && { echo alas >&2; exit 9; }; sleep 60")
        self.assertEqual(code, 9)
        self.assertIn("rank 1 failed first: exit code 9", err)
        self.assertIn("where     host b", err)
        self.assertIn("alas", err)
        self.assertEqual(err.count("failed first"), 1)
        self.nothing_is_left()

    def test_the_launcher_killed_leaves_nothing(self):
        process = self.start_on("a:1,b:1", "sh", "-c", "echo up; sleep 1000 & sleep 1000")
        for _ in range(2):
            self.assertIn("up", process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        started = time.monotonic()
        self.nothing_is_left()
        print(f"launcher killed -> nothing left on two hosts after {time.monotonic() - started:.2f} s")

    def test_sigterm_ends_all(self):
        process = self.start_on("a:1,b:1", "sh", "-c", "echo up; sleep 1000")
        for _ in range(2):
            self.assertIn("up", process.stdout.readline())
        os.kill(process.pid, signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 128 + signal.SIGTERM)
        self.nothing_is_left()

    def test_a_signal_is_passed_on_to_the_ranks_of_all_hosts(self):
        listen = "trap 'echo heard; exit 0' USR1; echo up; while :; do sleep 0.02; done"
        process = self.start_on("a:1,b:1,c:1", "sh", "-c", listen)
        for _ in range(3):
            self.assertIn("up", process.stdout.readline())
        os.kill(process.pid, signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, err), (0, ""))
        self.assertEqual(sorted(out.splitlines()), ["[0@a] heard", "[1@b] heard", "[2@c] heard"])

    def test_a_second_interrupt_ends_stubborn_ranks_of_all_hosts_at_once(self):
        process = self.start_on("a:1,b:1", "sh", "-c", "trap 'echo asked' TERM; echo up; while :; do sleep 0.02; done",
                                flags=["--shutdown-timeout", "10m"])
        for said in ("up", "asked"):
            for _ in range(2):
                self.assertIn(said, process.stdout.readline())
            os.kill(process.pid, signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 128 + signal.SIGINT)
        self.assertFalse([cmdline(pid) for host in self.world for pid in host.processes() if cmdline(pid).startswith(b"sh\0")])
        self.nothing_is_left()

    def test_a_time_limit_ends_a_job_whose_reader_has_stopped(self):
        write = "head -c 8000000 /dev/zero | tr '\\0' x; sleep 1000"

        def begin(limit):
            process = self.start_on("a:1,b:1", "sh", "-c", write, flags=["--timeout", str(limit), "--shutdown-timeout", "2"])
            return process if process.stdout.read(1) else None  # and no more of it

        process = time_limit.after(begin)
        said = process.stderr.read()
        self.assertEqual(process.wait(timeout=30), 124, said)
        self.assertRegex(said, "of output not shown on standard output: the reader has stopped")
        self.nothing_is_left()

    def test_a_host_that_cannot_be_reached_is_named(self):
        code, out, err = self.run_on("a:1,10.77.0.99:1", "true")
        self.assertEqual(code, 1)
        self.assertIn("host 10.77.0.99: ssh ended", err)
        self.nothing_is_left()

    def test_a_folder_that_is_not_there(self):
        code, out, err = self.run_on("b:1", "./no-such-program")
        self.assertEqual(code, 127)
        self.assertIn("no-such-program", err)

    def test_hosts_that_ask_for_too_much(self):
        code, out, err = self.run_on("a:1,b:1", "true", flags=["--nnodes", "3"])
        self.assertEqual(code, 2)
        self.assertIn("--nnodes", err)

    def test_an_elastic_job_goes_on_when_a_host_is_cut_off(self):
        script = "echo world $WORLD_SIZE attempt $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 1 ] && exit 0; sleep 1000"
        process = self.start_on("a:1,b:1,c:1", "sh", "-c", script, flags=[
            "--nnodes", "2:3", "--rdzv-conf", "keep_alive_interval=3,keep_alive_max_attempt=4"])
        for _ in range(3):
            self.assertIn("world 3 attempt 0", process.stdout.readline())
        try:
            self.world["c"].cut()
            for _ in range(2):
                self.assertIn("world 2 attempt 1", process.stdout.readline())
            # The host that was cut off has ended its own part: it is fenced.
            wait_for(lambda: not [p for p in self.world["c"].processes() if b"sleep" in cmdline(p)], 60)
        finally:
            self.world["c"].mend()
        code = process.wait(timeout=60)
        self.assertEqual(code, 0, process.stderr.read())
        self.nothing_is_left()

    def test_an_ssh_that_is_killed_is_no_end_of_its_agent(self):
        for flags, code in (((), 1), (("--nnodes", "1:2"), 0)):
            with self.subTest(flags=flags):
                go = self.world.folder / "go"
                process = self.start_on("a:1,b:1", "sh", "-c", "echo up; until [ -e go ]; do sleep 0.1; done", flags=flags)
                for _ in range(2):
                    self.assertIn("up", process.stdout.readline())
                ssh = [pid for pid in self.world["a"].processes() if b"ssh" in cmdline(pid) and b"agent" in cmdline(pid)]
                self.assertEqual(len(ssh), 1)
                os.kill(ssh[0], signal.SIGKILL)
                self.assertIn("host b: ssh was killed by SIGKILL; check that `", process.stderr.readline())
                go.touch()
                self.assertNotIn("its agent", process.communicate(timeout=60)[1])
                self.assertEqual(process.returncode, code)
                go.unlink()
                self.nothing_is_left()

    def test_hosts_from_a_command(self):
        hosts = self.world.folder / "now.txt"
        hosts.write_text("a slots=1\n")
        script = "echo world $WORLD_SIZE; [ $WORLD_SIZE = 2 ] && exit 0; sleep 1000"
        process = self.world["a"].start_for(self, [
            MUSTER, "run", "-q", "--host-discovery", f"cat {hosts}", "--nnodes", "1:2", "--rdzv-conf",
            "last_call_timeout=0", "sh", "-c", script])
        self.assertIn("world 1", process.stdout.readline())
        aside = self.world.folder / "soon.txt"
        aside.write_text("a slots=1\nb slots=1\n")
        aside.rename(hosts)  # at once: it is being read
        for _ in range(2):
            self.assertIn("world 2", process.stdout.readline())
        self.assertEqual(process.wait(timeout=60), 0, process.stderr.read())

    def test_a_command_for_hosts_that_hangs_holds_up_nothing(self):
        asked, hangs = self.world.folder / "asked", self.world.folder / "hangs"
        command = f"echo a slots=1; [ -e {asked} ] && {{ touch {hangs}; exec sleep 4321; }}; touch {asked}"
        script = f"until [ -e {hangs} ]; do sleep 0.1; done; echo it hangs"
        code, out, err = self.world["a"].run(
            [MUSTER, "run", "-q", "--host-discovery", command, "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0",
             "sh", "-c", script])
        self.assertEqual(code, 0, err)
        self.assertIn("it hangs", out)
        self.nothing_is_left()

    def test_a_command_for_hosts_that_fails_is_asked_again(self):
        asks, said = self.world.folder / "asks", self.world.folder / "said"
        command = f"echo a slots=1; echo x >> {asks}; [ $(wc -l < {asks}) != 2 ] || exit 3"
        # The rank ends when the launcher has said so and has asked again.
        script = f"until grep -q 'got exit code 3; asking again' {said} && [ $(wc -l < {asks}) -ge 3 ]; do sleep 0.1; done"
        with open(said, "w", encoding="utf-8") as err:
            code, _, _ = self.world["a"].run(
                [MUSTER, "run", "-q", "--host-discovery", command, "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0",
                 "sh", "-c", script], stderr=err)
        self.assertEqual(code, 0, said.read_text())


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    main(missing())
