"""What a program writes to the disk for good, and in which order (record_syncs.cc)."""

import pathlib


class Syncs:
    """Programs that are started with `environment` record their syncs and renames in `folder`."""

    def __init__(self, library, folder):
        self.recorded = pathlib.Path(folder) / "recorded-syncs"
        self.blocked = pathlib.Path(folder) / "blocked-syncs"
        self.environment = {"LD_PRELOAD": str(library), "RECORDED_SYNCS": str(self.recorded),
                            "BLOCKED_SYNCS": str(self.blocked)}

    def block(self):
        """From now on fdatasync does not return."""
        self.blocked.touch()

    def unblock(self):
        self.blocked.unlink()

    def lines(self):
        return self.recorded.read_text().splitlines() if self.recorded.exists() else []
