"""What listens at etcd's address and is no etcd is named by what it answers.

    no_etcd_test.py MUSTER
"""

import http.server
import subprocess
import sys
import threading
import unittest

MUSTER = ""


class NoEtcd(unittest.TestCase):
    def said_of(self, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        ran = subprocess.run([MUSTER, "run", "--nnodes", "2", "--node-rank", "0", "--rdzv-backend", "etcd", "--rdzv-id", "x",
                              "--rdzv-endpoint", f"127.0.0.1:{server.server_port}", "true"],
                             capture_output=True, text=True, timeout=100)
        self.assertEqual(ran.returncode, 1, ran.stderr)
        self.assertNotIn("json.exception", ran.stderr)
        return ran.stderr

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
