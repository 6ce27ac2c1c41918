"""Programs that fail: the stack of an error, and ranks that leave or do not come while others wait."""
import json
import os
import pathlib
import signal
import re
import socket
import subprocess
import sys
import unittest

from program_case import MUSTER, PARALLEL_PROBE, PROBE, SERVER_PROBE, ProgramTest, processes_of
from long import some_of


def line_of(mark):
    """Where run_probe_lines.cc says so: `run_probe_lines.cc:12`."""
    lines = pathlib.Path(__file__).with_name("run_probe_lines.cc").read_text(encoding="utf-8").splitlines()
    return f"run_probe_lines.cc:{next(i for i, line in enumerate(lines, 1) if mark in line)}"


class Stacks(ProgramTest):
    def failing(self, what, ranks=2, **env):
        return self.run_muster("-q", "--nproc-per-node", str(ranks), PROBE, what, **env)

    def test_an_exception_says_where_it_was_thrown(self):
        done = self.failing("throw")
        self.assert_fails(done, "#0 overheat() at", line_of("thrown here"), "probe(", code=1)
        card = done.stderr[done.stderr.index("[muster] rank 1"):]
        self.assertNotIn("muster::run(", card, "what is outside of the user's function")

    def test_an_exception_of_libtorch_and_one_that_is_none(self):
        self.assert_fails(self.failing("torch error", 1), "error     c10::Error: ", "mat1 and mat2", "torchCheckFail", "calls in LibTorch", "probe(")
        done = self.failing("torch error", 1, TORCH_SHOW_CPP_STACKTRACES=1)
        self.assert_fails(done, "Exception raised from check_mm_shapes", "frame #0: c10::Error::Error")
        self.assert_fails(self.failing("number", 1), "no std::exception, of type int", "probe(")

    def test_the_program_may_have_any_name(self):
        os.symlink(PROBE, f"{self.folder}/probe")
        done = self.run_muster("-q", "--nproc-per-node", "1", "./probe", "number")
        self.assert_fails(done, "#0 (anonymous namespace)::probe(", code=1)

    def test_stacks_are_an_option(self):
        done = self.failing("throw", MUSTER_BACKTRACE=0)
        self.assert_fails(done, "the reactor is too hot", code=1)
        self.assertNotIn("stack\n", done.stderr)
        done = self.failing("null", MUSTER_BACKTRACE=0)
        self.assert_fails(done, code=128 + signal.SIGSEGV)
        self.assertNotIn("its stack", done.stderr)
        self.assert_fails(self.failing("throw", MUSTER_BACKTRACE=7), "MUSTER_BACKTRACE: expected 0 or 1, got 7")

    def test_a_signal_says_its_stack_and_ends_the_rank_all_the_same(self):
        done = self.failing("null")
        self.assert_fails(done, "[1] [rank 1] error: SIGSEGV; its stack", "[1]   #0 ", "run_probe(+0x",
                          "rank 1 failed first: killed by SIGSEGV (segmentation fault)",
                          "#0 write_nowhere() at", line_of("written here"), code=128 + signal.SIGSEGV)
        failure = json.loads(pathlib.Path(self.folder, "run/failure.json").read_text())
        self.assertIn("write_nowhere()", failure["first"]["stack"])
        self.assertEqual(failure["first"]["signal"], "SIGSEGV")

    def error_of(self, rank):
        return json.loads(pathlib.Path(self.folder, f"run/logs/0/{rank}.error.json").read_text())["message"]

    def test_the_error_file_has_facts(self):
        self.failing("null")
        error = self.error_of(1)
        self.assertEqual(error["message"], "SIGSEGV")
        self.assertTrue(error["extraInfo"]["timestamp"].isdigit(), "torchrun reads it")
        facts = error["extraInfo"]["muster"]
        self.assertEqual(facts["signal"], "SIGSEGV")
        self.assertIn("its stack", facts["said"][0])
        self.assertTrue(facts["said"][1].startswith("  #0 "), facts)
        self.failing("throw")
        self.assertEqual(self.error_of(1)["extraInfo"]["muster"], {"code": "", "lost_ranks": [], "left_early": False})
        self.run_muster("-q", "--nproc-per-node", "3", PROBE, "early return")
        self.assertEqual(self.error_of(1)["extraInfo"]["muster"], {"code": "invalid_argument", "lost_ranks": [], "left_early": True})

    def test_words_of_a_program_are_no_facts(self):
        script = "import sys\nsys.exit('peer_failed: rank 0 returned from its function while others did not; its stack, innermost call first')"
        done = self.run_muster("-q", "--nproc-per-node", "1", "python3", "-c", script)
        self.assert_fails(done, "rank 0 failed: exit code 1", code=1)

    def test_abort_a_thread_and_a_stack_that_overflows(self):
        self.assert_fails(self.failing("abort"), "error: SIGABRT; its stack", "probe(", code=128 + signal.SIGABRT)
        self.assert_fails(self.failing("thread", 1), "error     std::runtime_error: the reactor is too cold", "probe(", code=128 + signal.SIGABRT)
        self.assert_fails(self.failing("deep", 1), "error: SIGSEGV; its stack", "depth_of(int)", code=128 + signal.SIGSEGV)

    def test_a_parameter_without_memory_is_told_of(self):
        note = "parameters of a fully sharded model have no memory between steps; read them while whole_parameters() lives"
        done = self.failing("sharded parameter", 1)
        self.assert_fails(done, "error: SIGSEGV; its stack", note, "read_between_steps(", code=128 + signal.SIGSEGV)
        self.assertEqual(self.error_of(0)["extraInfo"]["muster"]["said"][1], note)
        self.assertNotIn(note, self.failing("null").stderr)

    def test_a_fault_while_the_linker_waits_ends_the_rank_too(self):
        self.assert_fails(self.failing("load", 1), "error: SIGSEGV; its stack", "killed by SIGSEGV", code=128 + signal.SIGSEGV)

    def test_a_handler_of_the_program_stays(self):
        done = self.failing("own handler", 1)
        self.assert_fails(done, code=23)
        self.assertNotIn("its stack", done.stderr)

    def test_without_a_launcher_the_log_has_error_and_stack(self):
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound and never listening: rank 0 may listen there
            held.bind(("127.0.0.1", 0))
            done = self.start(PROBE, "number", RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=held.getsockname()[1])
        self.assert_fails(done, "[rank 0] error: an exception that is no std::exception, of type int; thrown here", f"#0 {PROBE}(+0x", code=1)

    def test_an_error_is_said_once(self):
        for flags in ((), ("--redirects", "2")):
            with self.subTest(flags=flags):
                done = self.run_muster("-q", "--nproc-per-node", "2", *flags, PROBE, "throw")
                self.assertEqual(done.stderr.count("the reactor is too hot"), 1, done.stderr)
        with open(f"{self.folder}/run/logs/0/1.err", encoding="utf-8") as log:
            self.assertIn("the reactor is too hot", log.read(), "a file has it too")
        done = self.run_muster("-q", "--nproc-per-node", "2", "--max-restarts", "1", PROBE, "throw")
        self.assertEqual(done.stderr.count("the reactor is too hot"), 2, done.stderr)
        self.assertIn("rank 1 failed: exit code 1, std::runtime_error: the reactor is too hot; starting all ranks again", done.stderr)


class GoingOn(ProgramTest):
    """Ranks that are killed in the middle of a training with parameter servers, and --on-failure continue."""

    def train(self, killed, *flags, ranks=6, servers=2, staleness=4, **env):
        """Kills those ranks in the middle; the exit code, the program's lines, what the launcher said."""
        command = [MUSTER, "run", "-q", "--run-dir", f"{self.folder}/run", "--nproc-per-node", str(ranks), *flags,
                   SERVER_PROBE, "500", str(servers), str(staleness)]
        lines, pids, left = [], {}, set(killed)
        with open(f"{self.folder}/err", "w+", encoding="utf-8") as err:
            with subprocess.Popen(command, cwd=self.folder, env=self.environment(**env), stdout=subprocess.PIPE,
                                  stderr=err, text=True) as job:
                for line in job.stdout:
                    lines.append(line)
                    told = re.search(r"(?:worker|server) (\d+) pid (\d+)", line)
                    if told:
                        pids[int(told[1])] = int(told[2])
                    for rank in left & pids.keys() if " step " in line else ():  # a worker trains
                        left.remove(rank)
                        os.kill(pids[rank], signal.SIGKILL)
                code = job.wait(timeout=60)
            err.seek(0)
            said = err.read()
        self.assertEqual(left, set(), said)
        self.assertEqual(processes_of(self.folder), [], "processes left running")
        return code, "".join(lines), said

    def test_the_others_train_on_without_workers_that_are_killed(self):
        for backend, staleness in some_of((("shm", 4), ("gloo", 4), ("shm", 0)), 1, 2):
            with self.subTest(backend=backend, staleness=staleness):
                code, lines, said = self.train({3, 4}, "--on-failure", "continue", staleness=staleness, MUSTER_BACKEND=backend)
                self.assertEqual(code, 0, said)
                for rank in (3, 4):
                    self.assertIn(f"rank {rank} is lost: killed by SIGKILL", said)
                    self.assertNotIn(f"worker {rank} done", lines)
                for rank in (2, 5):
                    losses = [float(x) for x in re.findall(rf"worker {rank} .*loss (\S+)", lines)]
                    self.assertEqual(len(losses), 51, lines)
                    self.assertLess(losses[-1], losses[0] / 2)
                for server in (0, 1):
                    self.assertIn(f"server {server} lost [3, 4]", lines)
                self.assertIn("the job has ended well without 2 of its 6 ranks, which were lost: rank", said)

    def test_a_killed_server_is_a_failure_of_every_rank(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                code, lines, said = self.train({1}, "--on-failure", "continue", ranks=4, MUSTER_BACKEND=backend)
                self.assertEqual(code, 128 + signal.SIGKILL, said)
                self.assertIn("rank 1 failed first: killed by SIGKILL", said)
                for rank in (2, 3):
                    self.assertRegex(said, rf"rank {rank} is lost: exit code 1, .*ParameterClient: .* on rank {rank}: "
                                           "expected server rank 1 to answer")
                self.assertNotIn("done", lines)

    def test_without_the_flag_all_end(self):
        code, lines, said = self.train({3}, ranks=4, servers=1)
        self.assertEqual(code, 128 + signal.SIGKILL, said)
        self.assertNotIn("done", lines)

    def test_the_flag_is_stronger_than_the_environment(self):
        for flags, expected in (((), "continue"), (("--on-failure", "end"), "end")):
            done = self.run_muster("-q", "-n", "1", *flags, "sh", "-c", "echo it is $MUSTER_ON_FAILURE", MUSTER_ON_FAILURE="continue")
            self.assertIn(f"it is {expected}\n", done.stdout)

    def test_a_program_that_starts_itself_refuses_another_word(self):
        done = subprocess.run([PROBE, "throw"], cwd=self.folder, env=self.environment(MUSTER_ON_FAILURE="contniue"), capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MUSTER_ON_FAILURE: expected end, continue or replace, got 'contniue'", done.stderr)

    def test_a_wrong_word_is_named_by_the_variable_that_has_it(self):
        done = self.run_muster("-q", "-n", "1", "true", MUSTER_ON_FAILURE="contniue")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("MUSTER_ON_FAILURE: expected end, continue or replace, got 'contniue'", done.stderr)
        self.assertNotIn("--on-failure", done.stderr)

    def test_other_words_and_several_hosts_are_refused(self):
        self.assert_fails(self.run_muster("--on-failure", "hope", "true"), "--on-failure: expected end, continue or replace, got 'hope'", code=2)
        self.assert_fails(self.run_muster("--on-failure", "continue", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "localhost:1",
                                          "true"), "--on-failure continue: expected a job on one host", code=2)


class Divided(ProgramTest):
    """A rank that is killed in mid-step of a divided model is named on the card, and by every other rank."""

    def killed(self, piece, backend, victim=2):
        done = self.run_muster("-n", "4", "--on-failure", "continue", PARALLEL_PROBE, piece, str(victim), MUSTER_BACKEND=backend)
        self.assert_fails(done, f"rank {victim} failed first: killed by SIGKILL", code=128 + signal.SIGKILL)
        for rank in {0, 1, 2, 3} - {victim}:
            told = re.search(rf"rank {rank} told: (.*)", done.stdout)
            self.assertTrue(told, f"{piece}, rank {rank}: {done.stdout}{done.stderr}")
            self.assertRegex(told[1], rf"rank {victim} ", f"{piece}, rank {rank}: {done.stdout}")

    PIECES = ("pipeline", "stages", "sharded", "tensor")

    def test_in_shared_memory(self):
        for piece in some_of(self.PIECES, 0, 3):
            with self.subTest(piece=piece):
                self.killed(piece, "shm")

    def test_over_gloo(self):
        for piece in some_of(self.PIECES, 1, 2):
            with self.subTest(piece=piece):
                self.killed(piece, "gloo")


class Waiting(ProgramTest):
    """Ranks that leave, or do not come, while others wait."""
    BACKENDS = ("shm", "gloo")

    def test_a_rank_that_returns_early_is_the_cause(self):
        for backend in self.BACKENDS:
            for what, call in (("early return", "all_reduce sum Float [4]"), ("early barrier", "barrier")):
                with self.subTest(backend=backend, what=what):
                    done = self.run_muster("-q", "--nproc-per-node", "3", PROBE, what, MUSTER_BACKEND=backend)
                    self.assert_fails(done, "rank 1 failed first: ",
                                      "error     invalid_argument: rank 1 returned from its function while others did not",
                                      f"got '{call}' on rank", code=1)
                    self.assertNotIn("'barrier' on rank 1", done.stderr)

    def test_a_rank_that_exits_with_0_is_the_cause(self):
        for backend in self.BACKENDS:
            with self.subTest(backend=backend):
                done = self.run_muster("-q", "--nproc-per-node", "2", PROBE, "early exit", MUSTER_BACKEND=backend)
                self.assert_fails(done, "rank 1 ended first: exit code 0, while others waited for it",
                                  "error     rank 0: peer_failed: all_reduce #", code=1)
                failure = json.loads(pathlib.Path(self.folder, "run/failure.json").read_text())
                self.assertEqual((failure["first"]["rank"], failure["exit_code"]), (1, 1))

    def test_a_rank_that_does_not_come_is_named_before_the_deadline(self):
        for backend in self.BACKENDS:
            with self.subTest(backend=backend):
                done = self.run_muster("-q", "--nproc-per-node", "3", "--collective-timeout", "4s", PROBE, "late", MUSTER_BACKEND=backend)
                self.assert_fails(done, "timeout: ", "missing rank(s) 1", code=1)
                lines = done.stderr.splitlines()
                words = [line for line in lines if "for rank(s) 1; rank(s) 0, 2 have come" in line]
                failure = next(line for line in lines if "missing rank(s) 1" in line)
                self.assertLess(lines.index(words[0]), lines.index(failure), done.stderr)
                self.assertLessEqual(len(words), 2, done.stderr)  # after a quarter and half of the time, by one rank
                self.assertTrue(all("all_reduce" in word and "[rank 0] warning" in word for word in words), words)

    def test_a_rank_that_gives_no_gradients_is_named(self):
        for backend in self.BACKENDS:
            with self.subTest(backend=backend):
                done = self.run_muster("-q", "--nproc-per-node", "2", "--collective-timeout", "6s", PROBE, "late gradients", MUSTER_BACKEND=backend)
                self.assert_fails(done, "[rank 0] warning: ", "for rank(s) 1; rank(s) 0 have come", code=1)

    def test_the_deadline_is_a_variable_too(self):
        done = self.start(PROBE, "late", MUSTER_NPROC=2, MUSTER_COLLECTIVE_TIMEOUT="500ms")
        self.assert_fails(done, "timeout: all_reduce #", code=1)
        for wrong in ("soon", "0"):
            self.assert_fails(self.start(PROBE, "late", MUSTER_NPROC=2, MUSTER_COLLECTIVE_TIMEOUT=wrong), "MUSTER_COLLECTIVE_TIMEOUT: ", wrong)
            self.assert_fails(self.run_muster("--collective-timeout", wrong, PROBE), "--collective-timeout", wrong, code=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
