"""What listens at etcd's address and is no etcd is named by what it answers.

    no_etcd_test.py MUSTER
"""

import http.server
import signal
import socket
import subprocess
import sys
import threading
import unittest

MUSTER = ""


class NoEtcd(unittest.TestCase):
    def command(self, answer, *flags, asked=None):
        """muster with a server for etcd that always answers this. `asked` is set by each transaction."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                if asked and self.path == "/v3/kv/txn":
                    asked.set()

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.endpoint = f"127.0.0.1:{server.server_port}"
        return [MUSTER, "run", "--nnodes", "2", "--node-rank", "0", "--rdzv-backend", "etcd", "--rdzv-id", "x",
                "--rdzv-endpoint", self.endpoint, *flags, "true"]

    def said_of(self, answer, *flags):
        ran = subprocess.run(self.command(answer, *flags), capture_output=True, text=True, timeout=100)
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertNotIn("json.exception", ran.stderr)
        return ran.stderr

    def test_transactions_that_are_never_carried_out(self):
        said = self.said_of(b"{}", "--rdzv-conf", "keep_alive_interval=1,keep_alive_max_attempt=4")
        self.assertIn(f"etcd: expected http://{self.endpoint} to carry out a transaction on 'muster/x/", said)

    def test_a_signal_ends_who_waits_for_one(self):
        asked = threading.Event()
        patient = ("--rdzv-conf", "keep_alive_interval=600,keep_alive_max_attempt=10")
        with subprocess.Popen(self.command(b"{}", *patient, asked=asked), stderr=subprocess.PIPE, text=True) as ran:
            self.assertTrue(asked.wait(100))
            ran.terminate()
            ran.communicate(timeout=100)
        self.assertEqual(ran.returncode, -signal.SIGTERM)

    def test_nothing_listens_there(self):
        with socket.socket() as held:  # bound, and nobody listens
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
            ran = subprocess.run([MUSTER, "run", "--nnodes", "2", "--node-rank", "0", "--rdzv-backend", "etcd", "--rdzv-id", "x",
                                  "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "join_timeout=1", "true"],
                                 capture_output=True, text=True, timeout=100)
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertRegex(ran.stderr, f"rendezvous: expected etcd at 127.0.0.1:{port} within 1.0s, got: http: .*; "
                                     "see whether it runs and can be reached from here, or correct --rdzv-endpoint")

    def test_a_web_page(self):
        self.assertRegex(self.said_of(b"<html>a proxy's page</html>"),
                         r"etcd: expected its answer as JSON, got '<html>a proxy's page</html>' \(parse error .*; "
                         "see whether it is etcd that listens there")

    def test_other_json(self):
        self.assertIn("""etcd: expected its answer as JSON, got '{"kvs":"x"}'""", self.said_of(b'{"kvs":"x"}'))

    def test_json_that_nests_too_deep(self):
        self.assertIn("etcd: expected its answer as JSON, got '[[[[", self.said_of(b"[" * 200000))


if __name__ == "__main__":
    MUSTER = sys.argv.pop(1)
    unittest.main(verbosity=2)
