#!/usr/bin/env python3
"""Writes an image in the form of the OCI image specification: a tar archive that podman, docker and skopeo load.

    oci_image.py OUT.tar NAME:TAG CONFIG.json LAYER.tar...

CONFIG.json is the `config` of the image (Entrypoint, Env, User, …). Layers are plain tar archives, the lowest first.
The same layers give the same image, byte for byte.
"""

import gzip
import hashlib
import io
import json
import pathlib
import platform
import shutil
import sys
import tarfile
import tempfile

CHUNK = 1 << 20
TYPE = "application/vnd.oci.image."
EPOCH = "1970-01-01T00:00:00Z"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class Layout:
    """A folder of blobs, each named by its SHA-256."""

    def __init__(self, folder):
        self.blobs = pathlib.Path(folder) / "blobs/sha256"
        self.blobs.mkdir(parents=True)
        self.folder = pathlib.Path(folder)

    def add_json(self, kind, value):
        text = json.dumps(value, sort_keys=True).encode()
        digest = hashlib.sha256(text).hexdigest()
        (self.blobs / digest).write_bytes(text)
        return {"mediaType": TYPE + kind, "digest": f"sha256:{digest}", "size": len(text)}

    def add_layer(self, path):
        """Compresses the layer; returns what points at it, and the digest of its plain bytes."""
        packed = self.blobs / "layer"
        with open(path, "rb") as source, open(packed, "wb") as raw, \
                gzip.GzipFile(fileobj=raw, filename="", mode="wb", compresslevel=1, mtime=0) as target:
            shutil.copyfileobj(source, target, CHUNK)
        plain, digest = sha256_of(path), sha256_of(packed)
        packed.rename(self.blobs / digest)
        size = (self.blobs / digest).stat().st_size
        return {"mediaType": TYPE + "layer.v1.tar+gzip", "digest": f"sha256:{digest}", "size": size}, f"sha256:{plain}"

    def write(self, out):
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        with tarfile.open(out, "w") as archive:
            for path in sorted(self.folder.rglob("*")):
                info = archive.gettarinfo(path, path.relative_to(self.folder).as_posix())
                info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
                with (open(path, "rb") if info.isreg() else io.BytesIO()) as source:
                    archive.addfile(info, source)


def write_image(out, name, config, layers):
    with tempfile.TemporaryDirectory(dir=pathlib.Path(out).parent) as folder:
        layout = Layout(folder)
        packed = [layout.add_layer(path) for path in layers]
        image = {"created": EPOCH, "os": "linux", "architecture": ARCHITECTURES[platform.machine()], "config": config,
                 "rootfs": {"type": "layers", "diff_ids": [plain for _, plain in packed]}}
        manifest = {"schemaVersion": 2, "mediaType": TYPE + "manifest.v1+json", "config": layout.add_json("config.v1+json", image),
                    "layers": [layer for layer, _ in packed]}
        found = layout.add_json("manifest.v1+json", manifest)
        found["annotations"] = {"org.opencontainers.image.ref.name": name}
        (layout.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [found]}, sort_keys=True))
        whole = pathlib.Path(out).with_suffix(".new")
        layout.write(whole)
        shutil.move(whole, out)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    write_image(sys.argv[1], sys.argv[2], json.loads(pathlib.Path(sys.argv[3]).read_text(encoding="utf-8")), sys.argv[4:])
