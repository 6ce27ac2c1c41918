"""The network of a cluster of Kubernetes for tests: a network and an address for each pod, and their names by DNS.

    with Cluster() as cluster:
        cluster.new_host(pod).run(["muster", "run", ...])

Needs what hosts.py needs, but for ssh.
"""

import os
import pathlib
import subprocess
import sys

import hosts

DOMAIN = "default.svc.cluster.local"
DNS = "10.77.0.254"
RESOLVER = f"nameserver {DNS}\nsearch {DOMAIN} svc.cluster.local cluster.local\noptions ndots:5\n"


class Cluster(hosts.Hosts):
    def __init__(self):
        super().__init__([])
        self.started = 0

    def make_network(self):
        super().make_network()
        self.on_switch("ip", "addr", "add", f"{DNS}/24", "dev", "switch")
        self.on_switch("ip", "link", "set", "lo", "up")

    def start_sshds(self):
        """Pods have none; they have a name server."""
        self.names_file = self.folder / "names"
        self.names_file.write_text("")
        server = subprocess.Popen(["ip", "netns", "exec", self.switch, sys.executable, "-B",
                                   str(pathlib.Path(__file__).parent / "pod_names.py"), DNS, str(self.names_file)])
        self.servers.append(server)

    def files_of(self, host):
        """The folder with what a pod has as /etc/hosts and /etc/resolv.conf; `ip netns exec` mounts them too."""
        return pathlib.Path(f"/etc/netns/{host.namespace}")

    def new_host(self, pod):
        """A network and an address for a pod that is started; its name means this address from now on."""
        self.started += 1
        host = hosts.Host(self, pod.host, f"10.77.0.{self.started}", f"{self.prefix}h{self.started}")
        self.hosts[host.namespace] = host
        self.connect(host)
        os.makedirs(self.files_of(host), exist_ok=True)
        full = f"{pod.name}.{DOMAIN}"
        (self.files_of(host) / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {full} {pod.host}\n")
        (self.files_of(host) / "resolv.conf").write_text(RESOLVER)
        lines = [line for line in self.names_file.read_text().splitlines() if line.split()[0] != full]
        whole = self.folder / "names.new"
        whole.write_text("\n".join([*lines, f"{full} {host.address}"]) + "\n")
        whole.rename(self.names_file)
        return host
