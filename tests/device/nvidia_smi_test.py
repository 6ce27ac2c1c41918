"""`muster devices --json` beside nvidia-smi on this machine; skipped where there is none.

    nvidia_smi_test.py MUSTER      the program
"""

import csv
import json
import shutil
import subprocess
import sys

SKIPPED = 77
QUERY = ["index", "uuid", "pci.bus_id", "name", "memory.total", "compute_cap", "mig.mode.current"]


def main(muster):
    if shutil.which("nvidia-smi") is None:
        print("skipped: no nvidia-smi here")
        return SKIPPED
    asked = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"],
                           capture_output=True, text=True)
    if asked.returncode != 0:
        print("skipped: nvidia-smi finds no driver:", asked.stdout.strip())
        return SKIPPED
    wanted = [dict(zip(QUERY, (field.strip() for field in row))) for row in csv.reader(asked.stdout.splitlines())]
    told = subprocess.run([muster, "devices", "--json"], capture_output=True, text=True, check=True).stdout
    found = json.loads(told)["hosts"][0]["gpus"]
    wrong = [] if len(found) == len(wanted) else [f"{len(found)} GPUs, nvidia-smi has {len(wanted)}"]
    for ours, theirs in zip(found, wanted):
        pairs = {
            "index": (ours["index"], int(theirs["index"])),
            "uuid": (ours["uuid"], theirs["uuid"]),
            "pci": (ours["pci"].lower()[-12:], theirs["pci.bus_id"].lower()[-12:]),
            "model": (ours["model"], theirs["name"]),
            "memory, MiB": (ours["memory_total_bytes"] >> 20, int(theirs["memory.total"])),
            "compute capability": (ours["compute_capability"], theirs["compute_cap"]),
            "MIG": (bool(ours.get("mig_enabled")), theirs["mig.mode.current"] == "Enabled"),
        }
        wrong += [f"GPU {theirs['index']}: {name}: {a!r}, nvidia-smi has {b!r}" for name, (a, b) in pairs.items() if a != b]
    print("\n".join(wrong) or f"{len(found)} GPUs as nvidia-smi has them")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
