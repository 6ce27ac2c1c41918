"""Specs of shell tasks for the real `muster tasks`, and what its runs say and leave: for the tests with other hosts."""

import json

from hosts import wait_for


def task(name, script, more="needs = { cpus = 1 }"):
    """A [[task]] whose command is a shell script; with `each`, $1 is x."""
    script = script.replace("{", "{{").replace("}", "}}")
    words = ", 'sh', '{x}'" if "each" in more else ""
    return f"[[task]]\nname = '{name}'\nargv = ['sh', '-c', '''{script}'''{words}]\n{more}\n"


class TasksCase:
    """Beside unittest.TestCase, for those with a `folder` of their own."""

    def write(self, *tasks, name="t.toml"):
        """A spec of these; its name."""
        (self.folder / name).write_text("\n".join(tasks), encoding="utf-8")
        return name

    def there(self, *names):
        for name in names:
            wait_for((self.folder / name).exists)

    def results(self, out):
        """What --json says, by the tasks' names."""
        return {result["name"]: result for result in json.loads(out)["tasks"]}

    def log_bytes(self, name, attempt=0):
        return (self.folder / "run" / "logs" / name / f"{attempt}.log").read_bytes()

    def log(self, name, attempt=0):
        return self.log_bytes(name, attempt).decode()
