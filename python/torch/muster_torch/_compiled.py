"""What is compiled, and its part in what the package muster tells of this rank."""
from muster import _abi

from muster_torch._backend import choose_host_backend, host_identity, make_hierarchical, make_shm, over_gloo, use_activity_of

__all__ = ["choose_host_backend", "host_identity", "make_hierarchical", "make_shm", "over_gloo"]

use_activity_of(_abi.path())
