"""build_module.py PYTHON SOURCE FOLDER: makes the wheels FOLDER/wheel/muster-*.whl and muster_torch-*.whl, and installs them
into FOLDER, unless what they are made of is as it was then. MUSTER_PROGRAM names the program for it.

Returns 77, and says why, where that Python cannot build it."""
import hashlib
import pathlib
import shutil
import subprocess
import sys

python, source, folder = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
stamp = folder / "made_of"
done = subprocess.run([python, "-c", "from setuptools.command import bdist_wheel; import pip, torch; print(torch.__file__, torch.__version__)"], capture_output=True, text=True) \
    if python else None
if not done or done.returncode:
    print(f"skipped: expected a Python with torch, pip and setuptools of at least 70.1, got '{python}'", *(done.stderr.splitlines()[-1:] if done else []))
    sys.exit(77)
made_of = hashlib.sha256(done.stdout.encode())
for part in ("muster/base/*", "muster/trace/*", "muster/shm/*", "muster/comm/**/*.*", "muster/c_api/*", "muster/c_api.h", "python/**/*.*"):
    for path in sorted(filter(pathlib.Path.is_file, source.glob(part))):
        made_of.update(str(path).encode() + path.read_bytes())
if stamp.is_file() and stamp.read_text() == made_of.hexdigest():
    print("as it was")
    sys.exit(0)
wheels = folder / "wheel"
shutil.rmtree(folder, ignore_errors=True)
pip = python, "-m", "pip", "--disable-pip-version-check"
for project in source / "python", source / "python/torch":
    subprocess.run([*pip, "wheel", "--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, project], check=True)
subprocess.run([*pip, "install", "--no-index", "--no-deps", "--target", folder, *wheels.glob("*.whl")], check=True)
stamp.write_text(made_of.hexdigest())
