"""`muster tasks --hosts` with real sshds on hosts with networks of their own.

    hosts_tasks_test.py MUSTER FAKE_NVML      the program; a stand-in for the driver's library
"""

import os
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cluster"))
from hosts import HostsCase, cmdline, first_started, main, missing, wait_for
from tasks_case import TasksCase, task

MUSTER = FAKE_NVML = ""


class HostsTasks(TasksCase, HostsCase):
    def setUp(self):
        self.folder = self.world.folder / self.id().rsplit(".", 1)[1]
        self.folder.mkdir()

    def command(self, hosts, *args):
        return [MUSTER, "tasks", "--hosts", hosts, "--run-dir", "run", *args]

    def run_tasks(self, hosts, *args, **more):
        return self.world["a"].run(self.command(hosts, *args), cwd=self.folder, **more)

    def start_tasks(self, hosts, *args, **more):
        return self.world["a"].start_for(self, self.command(hosts, *args), cwd=self.folder, **more)

    def test_tasks_run_on_every_host_and_their_output_comes_back(self):
        wait = 'until [ $(ls at-* 2>/dev/null | wc -l) = 3 ]; do sleep 0.05; done'
        spec = self.write(task(
            "t{x}", f'hostname >at-$1; {wait}; hostname; echo wrong >&2; printf "\\377\\000\\n"; '
            'echo "{\\"attempt\\": $MUSTER_ATTEMPT}"', "needs = { cpus = 1 }\neach = { x = '1..3' }"))
        code, out, err = self.run_tasks("a:1,b:1,c:1", "--json", spec)
        self.assertEqual(code, 0, err)
        results = self.results(out)
        hosts = {name: task["attempts"][0]["host"] for name, task in results.items()}
        self.assertEqual(sorted(hosts.values()), ["a", "b", "c"])
        for name, host in hosts.items():
            self.assertEqual(self.log_bytes(name), host.encode() + b'\nwrong\n\xff\x00\n{"attempt": 0}\n')
            self.assertEqual(results[name]["result"], {"attempt": 0})
        self.nothing_is_left()

    def test_no_more_tasks_at_a_time_than_a_host_is_given(self):
        script = 'mkdir lock-$(hostname) || exit 9; sleep 0.05; rmdir lock-$(hostname)'
        spec = self.write(task("t{x}", script, "needs = { cpus = 1 }\neach = { x = '1..12' }"))
        (self.folder / "hosts.txt").write_text("b slots=1\nc slots=1\n")
        code, out, err = self.world["a"].run([MUSTER, "tasks", "--hostfile", "hosts.txt", "--cpus", "8", spec],
                                             cwd=self.folder)
        self.assertEqual(code, 0, err)

    def test_a_large_output_comes_whole(self):
        spec = self.write(task("t", "head -c 20000000 /dev/zero | tr '\\\\0' x; echo end"))
        code, out, err = self.run_tasks("b", spec)
        self.assertEqual(code, 0, err)
        log = self.log_bytes("t")
        self.assertEqual((len(log), log[-4:]), (20000004, b"end\n"))

    def test_the_environment_is_chosen_and_secrets_stay(self):
        spec = self.write(task("t", "env; pwd", "needs = { cpus = 1 }\nenv = { MINE = 'a b' }"))
        code, out, err = self.run_tasks("b", spec, env={"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "hidden"})
        self.assertEqual(code, 0, err)
        said = self.log("t")
        for line in ("MINE=a b", "NCCL_DEBUG=INFO", "MUSTER_TASK=t", "MUSTER_ATTEMPT=0", str(self.folder),
                     f"MUSTER_RUN_DIR={self.folder}/run"):
            self.assertIn(line + "\n", said)
        self.assertNotIn("hidden", said)

    def test_ranks_of_a_task_are_on_one_host(self):
        spec = self.write(task("t", 'echo "$RANK of $WORLD_SIZE on $(hostname)"', "ranks = 2\nneeds = { cpus = 2 }"))
        code, out, err = self.run_tasks("b", "--cpus", "2", spec)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(line.split("] ")[-1] for line in self.log("t").splitlines()),
                         ["0 of 2 on b", "1 of 2 on b"])

    def test_what_a_task_leaves_behind_there_is_named(self):
        code, out, err = self.run_tasks("b", self.write(task("web", "sleep 1000 &")))
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"web left processes behind, which were ended: process [0-9]+ \(")
        self.nothing_is_left()

    def test_failures_there_are_told_as_here(self):
        spec = self.write(
            task("code", 'echo alas; [ "$MUSTER_ATTEMPT" = 1 ] && exit 4; exit 3',
                 "needs = { cpus = 1 }\nretries = 1\nback_off = '0s'"),
            task("killed", "kill -9 $$"), task("late", "sleep 1000", "needs = { cpus = 1 }\ntime_limit = '200ms'"),
            "[[task]]\nname = 'none'\nargv = ['./no-such-program']\nneeds = { cpus = 1 }",
            task("after", "true", "needs = { cpus = 1 }\nafter = ['code']"))
        code, out, err = self.run_tasks("b", "--json", spec)
        self.assertEqual(code, 1, err)
        results = self.results(out)
        self.assertEqual([a["exit_code"] for a in results["code"]["attempts"]], [3, 4])
        self.assertEqual(results["code"]["reason"], "exit code 4")
        self.assertEqual(results["killed"]["reason"], "killed by SIGKILL")
        self.assertEqual(results["late"]["attempts"][0]["timed_out"], True)
        self.assertEqual(results["none"]["attempts"][0]["exit_code"], 127)
        self.assertEqual(results["after"]["state"], "skipped")
        self.assertIn("    | alas", err)
        self.nothing_is_left()

    def test_a_connection_that_dies_costs_no_retry(self):
        first = 'if [ $(hostname) = b ] && mkdir on-b; then sleep 1000 & echo $! >child; sleep 1000; fi; hostname'
        spec = self.write(task("t{x}", first, "needs = { cpus = 1 }\neach = { x = '1..4' }"))
        process = self.start_tasks("a:1,b:1", "--json", spec)
        self.there("child")
        servers = [pid for pid in self.world["b"].processes() if b"--serve" in cmdline(pid)]
        tasks = [pid for pid in self.world["b"].processes() if b"sleep" in cmdline(pid)]
        self.assertGreaterEqual(len(tasks), 2)
        ssh = [pid for pid in self.world["a"].processes() if b"--serve" in cmdline(pid)]
        self.assertEqual(len(ssh), 1)
        os.kill(ssh[0], signal.SIGKILL)
        wait_for(lambda: not any(cmdline(pid) for pid in servers + tasks), 30)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("[muster] host b: ssh was killed by SIGKILL", err)
        self.assertIn("set aside and tried again", err)
        lost = [task for task in self.results(out).values() if len(task["attempts"]) == 2]
        self.assertEqual([attempt["host"] for attempt in lost[0]["attempts"]], ["b", "a"])
        self.assertEqual(self.log(lost[0]["name"], 1), "a\n")
        self.nothing_is_left()

    def test_a_server_that_is_killed_takes_its_tasks_along(self):
        spec = self.write(task("t", '[ $(hostname) = a ] && exit 0; touch up; sleep 1000 & sleep 1000'))
        process = self.start_tasks("b,a:1", spec)
        self.there("up")
        # Its sentinel has the same command line and is its child.
        server = first_started(pid for pid in self.world["b"].processes() if cmdline(pid).startswith(MUSTER.encode()))
        os.kill(server, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.nothing_is_left()

    def test_a_host_whose_server_was_killed_is_used_again(self):
        spec = self.write(task("t", 'mkdir up 2>/dev/null && { sleep 1000 & sleep 1000; }; hostname'))
        process = self.start_tasks("b", "--json", spec)
        self.there("up")
        server = first_started(pid for pid in self.world["b"].processes() if cmdline(pid).startswith(MUSTER.encode()))
        os.kill(server, signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("[muster] host b is back\n", err)
        self.assertEqual([attempt["host"] for attempt in self.results(out)["t"]["attempts"]], ["b", "b"])
        self.assertEqual(self.log("t", 1), "b\n")
        self.nothing_is_left()

    @unittest.skipUnless("MUSTER_TEST_LONG" in os.environ, "takes over a minute; the test tasks.host_cut_off has it")
    def test_a_host_that_is_cut_off_ends_its_tasks_before_they_run_elsewhere(self):
        spec = self.write(task("t", 'touch up-$(hostname); [ $(hostname) = a ] && { cat alive; exit 0; }; '
                                    'while true; do date +%s.%N >new; mv new alive; sleep 0.1; done'))
        process = self.start_tasks("b,a:1", "--json", spec)
        self.there("up-b")
        try:
            self.world["b"].cut()
            out, err = process.communicate(timeout=120)
        finally:
            self.world["b"].mend()
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("host b: nothing has been heard from it", err)
        last = self.results(out)["t"]["attempts"][1]
        alive, again = float(self.log("t", 1)), (self.folder / "up-a").stat().st_mtime
        self.assertEqual(last["host"], "a")
        self.assertGreater(again - alive, 5, "the task on b ended well before")
        self.nothing_is_left(60)

    def test_the_run_goes_on_later_when_all_hosts_are_lost(self):
        spec = self.write(task("t{x}", 'touch up; [ -e go ] || sleep 1000', "needs = { cpus = 1 }\neach = { x = '1..3' }"))
        process = self.start_tasks("b:1", "--wait", "0s", spec)
        self.there("up")
        ssh = [pid for pid in self.world["a"].processes() if b"--serve" in cmdline(pid)]
        os.kill(ssh[0], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("expected hosts that can run the 3 tasks that wait, got none (b: ssh was killed", err)
        (self.folder / "go").touch()
        code, out, err = self.world["a"].run([MUSTER, "tasks", "--resume", "run", "--hosts", "c", "--json"],
                                             cwd=self.folder)
        self.assertEqual(code, 0, err)
        self.assertEqual({task["attempts"][-1]["host"] for task in self.results(out).values()}, {"c"})

    def test_a_run_that_is_killed_leaves_nothing_and_goes_on(self):
        spec = self.write(task("t{x}", 'touch up-$1; [ -e go ] || { sleep 1000 & sleep 1000; }',
                               "needs = { cpus = 1 }\neach = { x = '1..4' }"))
        process = self.start_tasks("a:1,b:1,c:1", spec)
        for name in ("up-1", "up-2", "up-3"):
            self.there(name)
        os.kill(process.pid, signal.SIGKILL)
        self.nothing_is_left()
        (self.folder / "go").touch()
        code, out, err = self.world["a"].run([MUSTER, "tasks", "--resume", "run", "--json"], cwd=self.folder)
        self.assertEqual(code, 0, err)
        self.assertEqual([len(task["attempts"]) for task in self.results(out).values()], [2, 2, 2, 1])
        self.nothing_is_left()

    def test_ctrl_c_lets_them_finish_and_sigterm_asks_them_to_end(self):
        spec = self.write(task("t{x}", 'trap "echo asked; exit 5" TERM; touch up-$1; until [ -e go ]; do sleep 0.05; done',
                               "needs = { cpus = 1 }\neach = { x = '1..3' }"))
        process = self.start_tasks("b:1", "--json", spec)
        self.there("up-1")
        os.kill(process.pid, signal.SIGINT)
        self.assertTrue(any("run's folder" in line for line in iter(process.stderr.readline, "")))  # a busy host is waited for
        while "muster starts no new task" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        (self.folder / "go").touch()
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertEqual([task["state"] for task in self.results(out).values()], ["done", "skipped", "skipped"])
        (self.folder / "go").unlink()
        process = self.world["a"].start_for(self, [MUSTER, "tasks", "--resume", "run"], cwd=self.folder)
        self.there("up-2")
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(self.log("t2"), "asked\n")
        self.nothing_is_left()

    def test_ctrl_z_stops_tasks_there_too(self):
        os.mkfifo(self.folder / "go")
        # The shell starts nothing meanwhile: one that waits for a process's exec is not shown as stopped.
        spec = self.write(task("t", 'echo $$ >pid; read -r line <go; hostname'))
        process = self.start_tasks("b:1", spec)
        wait_for(lambda: (self.folder / "pid").exists() and (self.folder / "pid").read_text().endswith("\n"), 60)
        sleeper = int((self.folder / "pid").read_text())

        def stopped(pid):
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

        os.kill(process.pid, signal.SIGTSTP)
        wait_for(lambda: stopped(process.pid) and stopped(sleeper), 30)
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: not stopped(process.pid) and not stopped(sleeper), 30)
        (self.folder / "go").write_text("on\n")
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, self.log("t")), (0, "b\n"), err)

    def test_starts_are_not_serialised_by_round_trips(self):
        """No answer comes before all eight have begun."""
        spec = self.write(task("t{x}", "touch begun-$1", "needs = { cpus = 1 }\neach = { x = '1..8' }"))
        far = self.wrapper("far", f"exec {sys.executable} {pathlib.Path(__file__).with_name('held_link.py')} 8 \"$@\"")
        code, out, err = self.run_tasks("b:8", "--cpus", "8", "--ssh", f"{far} {self.world.environment['MUSTER_SSH']}", spec)
        self.assertEqual(code, 0, err)

    def test_what_is_wrong_is_said_before_anything_starts(self):
        spec = self.write(task("t", "touch ran"))
        cases = {"b,10.77.0.99": (1, "host 10.77.0.99: expected an answer of muster there, got ssh ended with exit code 255"),
                 "b:0": (2, "--hosts: expected"), "a,10.77.0.1": (2, "this machine once")}
        for hosts, (expected, said) in cases.items():
            code, out, err = self.run_tasks(hosts, spec)
            self.assertEqual(code, expected, err)
            self.assertIn(said, err)
        code, out, err = self.run_tasks("b", "--remote-muster", "/no/muster", spec)
        self.assertEqual(code, 1, err)
        self.assertIn("/no/muster", err)
        self.assertFalse((self.folder / "ran").exists())
        self.assertFalse((self.folder / "run").exists())
        self.nothing_is_left()

    def wrapper(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def test_another_version_and_other_talk_are_refused(self):
        spec = self.write(task("t", "true"))
        old = self.wrapper("old", """echo '{"muster": "host", "version": "0.0.1", "inventory": """
                           """"{\\\\"schema\\\\": \\\\"muster.devices/1\\\\", \\\\"hosts\\\\": [{\\\\"name\\\\": \\\\"x\\\\"}]}"}'; cat >/dev/null""")
        code, out, err = self.run_tasks("b", "--remote-muster", old, spec)
        self.assertEqual(code, 1, err)
        self.assertRegex(err, "expected muster [0-9.]+ there, as here, got 0.0.1")
        garbage = self.wrapper("garbage", """echo '{"muster": "what"}'; cat >/dev/null""")
        code, out, err = self.run_tasks("b", "--remote-muster", garbage, spec)
        self.assertEqual(code, 1, err)
        self.assertIn("a kind of message", err)

    def test_what_a_login_prints_is_no_message(self):
        spec = self.write(task("t", "hostname"))
        chatty = self.wrapper("chatty", f'echo "Welcome!"; echo "{{ today }}"; exec {MUSTER} "$@"')
        code, out, err = self.run_tasks("b", "--remote-muster", chatty, spec)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.log("t"), "b\n")

    UUID = "GPU-{}0000000-0000-4000-8000-000000000000"

    def with_gpus(self):
        """A muster that finds one GPU on each host."""
        return self.wrapper("with-gpus", f"""
            export MUSTER_NVML_LIBRARY={FAKE_NVML} MUSTER_RUNTIME_DIR={self.folder}/$(hostname); mkdir -m 700 -p $MUSTER_RUNTIME_DIR
            n=$(hostname | tr bc 12)
            export FAKE_NVML="version=550.54|uuid={self.UUID.format('${n}')},name=Test GPU,total=8589934592,free=8589934592,cc=9.0,pci=00000000:01:00.0"
            exec {MUSTER} "$@" """)

    def test_a_gpu_is_kept_there_while_what_a_task_left_may_use_it(self):
        """A daemon that shows in nothing whose it is lives until the task beside it has ended, which may have started it too."""
        (self.folder / "daemon.py").write_text("import os, time\nos.closerange(0, 4096)\nopen('pid.new', 'w').write(str(os.getpid()))\n"
                                               "os.rename('pid.new', 'pid')\ntime.sleep(1000)\n")
        spec = self.write(
            task("leaver", "while [ ! -e begun ]; do sleep 0.01; done; env -i setsid python3 daemon.py & "
                 "while [ ! -e pid ]; do sleep 0.01; done; echo $$ >leaver", "needs = { gpus = 1 }"),
            task("beside", "echo >begun; while [ ! -s leaver ] || [ -d /proc/$(cat leaver) ]; do sleep 0.01; done"),
            task("next", "! [ -d /proc/$(cat pid) ]", "needs = { gpus = 1 }\nafter = ['leaver']"))
        code, out, err = self.run_tasks("b", "--cpus", "2", "--remote-muster", self.with_gpus(), spec)
        self.assertEqual(code, 0, err)
        self.assertIn("leaver, or a task that still runs, has left process ", err)
        self.nothing_is_left()

    def test_gpus_are_leased_where_they_are(self):
        uuid, gpu = self.UUID, self.with_gpus()
        hold = self.write(task("hold", "touch held; until [ -e go ]; do sleep 0.05; done", "needs = { gpus = 1 }"),
                          name="hold.toml")
        holder = self.world["a"].start_for(
            self, [MUSTER, "tasks", "--remote-muster", gpu, "--hosts", "b", "--run-dir", "other", hold], cwd=self.folder)
        self.there("held")
        spec = self.write(task("t{x}", 'echo "$CUDA_VISIBLE_DEVICES on $(hostname)"; touch ran-$1',
                               "needs = { gpus = 1 }\neach = { x = '1..2' }"))
        process = self.start_tasks("b", "--remote-muster", gpu, spec)
        while "some GPUs are held, and left to their holders: GPU 0 of b is held by job" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        (self.folder / "go").touch()
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(self.log("t1"), uuid.format(1) + " on b\n")
        holder.communicate(timeout=60)
        code, out, err = self.world["a"].run(
            [MUSTER, "tasks", "--remote-muster", gpu, "--hosts", "b,c", "--gpus", "c:all", "--run-dir", "third", "--json",
             spec], cwd=self.folder)
        self.assertEqual(code, 0, err)
        self.assertEqual({a["host"] for task in self.results(out).values() for a in task["attempts"]}, {"c"})


class HostsApart(TasksCase, HostsCase):
    """They have the muster program in common, and nothing else."""
    NAMES = ("a", "b")
    APART = True

    def setUp(self):
        self.folder = self.world["a"].disk / "work"

    def test_they_share_nothing_else(self):
        there = self.world["b"].disk / "work"
        (there / "mine").write_text("of b")
        (self.folder / "only-here").write_text("of a")
        spec = self.write(task("one", 'cat mine; ls only-here 2>&1; hostname; echo x >"$MUSTER_RUN_DIR/mark"; echo "{\\"seen\\": 1}"'),
                          task("two", 'echo "$RANK of $WORLD_SIZE on $(hostname)"', "ranks = 2\nneeds = { cpus = 2 }"))
        code, out, err = self.world["a"].run([MUSTER, "tasks", "--hosts", "b", "--cpus", "2", "--run-dir", "run", "--json", spec])
        self.assertEqual(code, 0, err)
        self.assertEqual(self.results(out)["one"]["result"], {"seen": 1})
        said = self.log("one")
        self.assertIn("of b", said)
        self.assertRegex(said, "only-here.*No such file")
        self.assertIn("\nb\n", said)
        self.assertEqual(sorted(line.split("] ")[-1] for line in self.log("two").splitlines()), ["0 of 2 on b", "1 of 2 on b"])
        self.assertEqual((there / "run" / "mark").read_text(), "x\n", "the same path there, which was made")
        self.assertFalse((self.folder / "run" / "mark").exists(), "the disks are two")
        logs = {path.relative_to(there / "run" / "logs").parts[0] for path in (there / "run" / "logs").rglob("*") if path.is_file()}
        self.assertEqual(logs, {"two"}, "of several ranks; what others print is where the run is")
        self.assertFalse((there / "run" / "journal").exists())
        self.nothing_is_left()


if __name__ == "__main__":
    MUSTER, FAKE_NVML = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    main(missing())
