// Which host this process is on: for ranks to compare, and for people.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

// Equal where memory and devices can be shared: MUSTER_HOST_ID, or boot id + IPC and network
// namespaces.
std::string host_identity();

// The name that the machine gives itself; "localhost", as every machine calls itself, where it has
// none.
std::string own_host_name();

// The number that the kernel gives to this process's namespace "pid", "ipc" or "net"; 0 where it
// does not tell.
uint64_t namespace_inode(const char* name);

}  // namespace muster
