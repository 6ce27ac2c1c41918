"""build_module.py PYTHON SOURCE FOLDER: installs the Python module into FOLDER, unless what it is made of is as it was then.

Returns 77, and says why, where that Python cannot build it."""
import hashlib
import pathlib
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
for part in ("muster/base/*", "muster/trace/*", "muster/shm/*", "muster/comm/*.*", "python/*.*", "python/muster/*.*"):
    for path in sorted(source.glob(part)):
        made_of.update(str(path).encode() + path.read_bytes())
if stamp.is_file() and stamp.read_text() == made_of.hexdigest():
    print("as it was")
    sys.exit(0)
subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-build-isolation", "--no-deps", "--upgrade",
                "--target", folder, source / "python"], check=True)
stamp.write_text(made_of.hexdigest())
