"""`muster completion` and `muster manual`: shells complete what there is, and the pages are ones.  completion_test.py MUSTER"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

MUSTER = sys.argv.pop(1)
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_muster
printf '%s\\n' "${COMPREPLY[@]}"
"""


def said(*argv, code=0):
    done = subprocess.run([MUSTER, *argv], capture_output=True, text=True, timeout=20)
    if done.returncode != code:
        raise AssertionError(f"{argv} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


class Completion(unittest.TestCase):
    def in_bash(self, *words):
        with tempfile.NamedTemporaryFile("w", suffix=".bash") as script:
            script.write(said("completion", "bash"))
            script.flush()
            done = subprocess.run(["bash", "-c", COMPLETE, "bash", script.name, *words], capture_output=True, text=True, timeout=20)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash_completes_commands_and_flags(self):
        self.assertEqual(self.in_bash("muster", "r"), ["run", "report"])
        self.assertEqual(self.in_bash("muster", "run", "--gp"), ["--gpus", "--gpus-per-rank"])
        self.assertEqual(self.in_bash("muster", "checkpoint", ""), ["ls", "show", "verify", "diff", "export"])
        self.assertEqual(self.in_bash("muster", "checkpoint", "export", "--st"), ["--strip"])
        self.assertEqual(self.in_bash("muster", "run", "tr"), [], "a program: the shell's files")

    def test_every_command_of_help_is_completed(self):
        listed = said("--help").split("Subcommands:")[1].split("Examples:")[0].split("\n")
        names = [line.split()[0] for line in listed if line.startswith("  ") and not line.startswith("   ")]
        self.assertGreater(len(names), 10)
        self.assertEqual(self.in_bash("muster", ""), names)

    def test_scripts_for_other_shells_are_of_their_language(self):
        for shell in ("zsh", "fish"):
            script = said("completion", shell)
            self.assertIn("gpus", script)
            if shutil.which(shell):
                with tempfile.NamedTemporaryFile("w") as file:
                    file.write(script)
                    file.flush()
                    subprocess.run([shell, "-n", file.name], check=True, timeout=20)

    def in_fish(self, line):
        with tempfile.TemporaryDirectory() as home:
            script = pathlib.Path(home, "muster.fish")
            script.write_text(said("completion", "fish"))
            done = subprocess.run(["fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]', str(script), line], capture_output=True, text=True,
                                  timeout=60, cwd=home, env={"HOME": home, "PATH": os.environ["PATH"]})
        self.assertEqual(done.stderr, "")
        return [word.split("\t")[0] for word in done.stdout.splitlines()]

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_offers_what_belongs_to_the_command(self):
        self.assertEqual(self.in_fish("muster r"), ["report", "run"])
        self.assertIn("--gpus-per-rank", self.in_fish("muster run --gp"))
        self.assertEqual(set(self.in_fish("muster checkpoint ")) & {"ls", "show", "verify", "diff", "export", "run"}, {"ls", "show", "verify", "diff", "export"})
        self.assertEqual(self.in_fish("muster checkpoint export --st"), ["--strip"])
        self.assertEqual(self.in_fish("muster checkpoint --js"), [], "that is a flag of its commands")
        self.assertEqual(self.in_fish("muster run ./export --st"), [], "a program's name is no command")

    def test_flags_of_nested_commands_are_theirs_alone_in_fish(self):
        script = said("completion", "fish")
        self.assertIn("complete -c muster -n '__muster_at flags \"checkpoint export\"' -l strip -r", script)
        self.assertIn("complete -c muster -n '__muster_at commands \"\"' -a run ", script)
        self.assertNotIn("__fish_seen_subcommand_from", script)

    def test_another_shell_is_refused(self):
        self.assertIn("csh not in {bash,zsh,fish}", said("completion", "csh", code=2))


class Manual(unittest.TestCase):
    def test_a_page_has_the_flags_of_help(self):
        page = said("manual", "run")
        self.assertTrue(page.startswith('.TH muster-run 1 "" "muster '))
        self.assertIn("\\fB\\-\\-nproc\\-per\\-node\\fR \\fIN\\fR\n", page)
        self.assertIn("Environment: PET_MAX_RESTARTS.\n", page)

    def test_every_command_has_a_page_that_groff_takes(self):
        with tempfile.TemporaryDirectory() as folder:
            said("manual", "--all", folder)
            pages = {path.name for path in pathlib.Path(folder).iterdir()}
            self.assertLessEqual({"muster.1", "muster-run.1", "muster-checkpoint-diff.1"}, pages)
            if shutil.which("groff"):
                for page in pages:
                    done = subprocess.run(["groff", "-K", "utf8", "-man", "-ww", "-Tutf8", f"{folder}/{page}"], capture_output=True, text=True)
                    faults = [line for line in done.stderr.splitlines() if "cannot adjust" not in line]
                    self.assertEqual(faults, [])

    def test_what_there_is_not_is_said(self):
        self.assertIn("expected a command, got 'rnu'", said("manual", "rnu", code=2))
        self.assertIn("/nowhere/at/all", said("manual", "--all", "/nowhere/at/all", code=2))


if __name__ == "__main__":
    unittest.main()
