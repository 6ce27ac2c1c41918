"""A clock that jumps (libfaketime)."""

import pathlib

from place import Skip


class FakedClock:
    """Programs that are started with `environment` have it; what they start has it too, unless it has no LD_PRELOAD."""

    def __init__(self, place, monotonic):
        """`monotonic`: the clock that measures times jumps too, which no machine does: it stands for a long wait."""
        libraries = list(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        if not libraries:
            raise Skip("no libfaketime (package faketime)")
        self.file = place.folder / "time"
        self.environment = {"LD_PRELOAD": str(libraries[0]), "FAKETIME_TIMESTAMP_FILE": str(self.file), "FAKETIME_NO_CACHE": "1"}
        if not monotonic:
            self.environment.update({"DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
        self.jump_to(0)

    def jump_to(self, seconds):
        """So many seconds ahead of the real one, or behind it."""
        later = self.file.with_name("later")
        later.write_text(f"{seconds:+}")
        later.rename(self.file)  # at once: it is being read
