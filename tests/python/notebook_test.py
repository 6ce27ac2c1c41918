"""muster in a notebook: functions of its cells, output, failure cards and the stop button. Skipped where nbclient, ipykernel
or cloudpickle is not installed."""
import os
import sys
import unittest

try:
    import cloudpickle  # noqa: F401
    import ipykernel  # noqa: F401
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from package import PATH, PackageCase

DEFINE = """
import os, time, pathlib
import muster
def work(x):
    print("rank", muster.rank(), "works", flush=True)
    if x < 0: raise ValueError("below zero")
    return muster.rank() + x
def wait_for_ever():
    pathlib.Path("pids").mkdir(exist_ok=True)
    pathlib.Path("pids", str(os.getpid())).touch()
    while True: time.sleep(0.1)
"""


def text_of(cell):
    return "".join(output.get("text", "") + "".join(output.get("data", {}).get("text/plain", "")) for output in cell.outputs)


def reply_to(client, request):
    """The content of the reply to this request. Others, such as those to questions whether the kernel is ready, may come before."""
    while True:
        reply = client.get_shell_msg(timeout=120)
        if reply["parent_header"].get("msg_id") == request:
            return reply["content"]


class Notebook(PackageCase):
    def notebook(self, *cells):
        os.environ.update(PYTHONPATH=PATH, MUSTER_CPU_SLOTS="2")
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (DEFINE, *cells)])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "python3"}
        return book

    def run_cells(self, *cells):
        book = self.notebook(*cells)
        NotebookClient(book, timeout=300, resources={"metadata": {"path": str(self.folder)}}, allow_errors=True).execute()
        return book.cells[1:]

    def test_functions_of_cells_run_and_their_output_is_shown(self):
        first, second = self.run_cells("muster.spawn(work, args=(3,), n=2)",
                                       "with muster.Executor() as pool: print(pool.submit(work, 1).result())")
        self.assertIn("[3, 4]", text_of(first))
        self.assertIn("rank 1 works", text_of(first))
        self.assertIn("CPU slot", text_of(first))  # the plan
        self.assertEqual(text_of(second), "1\n")

    def test_a_failure_shows_its_card(self):
        [cell] = self.run_cells("muster.spawn(work, args=(-1,), n=1, quiet=True)")
        error = cell.outputs[-1]
        self.assertEqual((error["output_type"], error["ename"]), ("error", "RanksFailed"))
        self.assertIn("rank 0 failed first", error["evalue"])
        self.assertIn("ValueError: below zero", error["evalue"])

    def test_the_stop_button_ends_the_ranks(self):
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel(cwd=str(self.folder), env={**os.environ, "PYTHONPATH": PATH, "MUSTER_CPU_SLOTS": "2"})
        self.addCleanup(manager.shutdown_kernel, now=True)
        client = manager.client()
        client.start_channels()
        self.addCleanup(client.stop_channels)
        client.wait_for_ready(timeout=120)
        self.assertEqual(reply_to(client, client.execute(DEFINE))["status"], "ok")
        # Otherwise the kernel refuses whatever it is asked in the moment after a cell has failed.
        waiting = client.execute("muster.spawn(wait_for_ever, n=2)", stop_on_error=False)
        self.wait_for(lambda: len(self.pids_in()) == 2, "two ranks")
        manager.interrupt_kernel()
        reply = reply_to(client, waiting)
        self.assertEqual((reply["status"], reply.get("ename")), ("error", "KeyboardInterrupt"))
        self.wait_for_the_end_of(self.pids_in())
        self.assertEqual(reply_to(client, client.execute("1 + 1"))["status"], "ok")


if __name__ == "__main__":
    unittest.main()
