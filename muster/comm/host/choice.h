// Which backend carries CPU tensors. For C++ (rendezvous/members.cc, sub_group.cc) and Python
// alike.
#pragma once

#include <string>
#include <vector>

namespace muster {

// By the host_identity() of each rank: "shm" when all are on one host, "shm+gloo" when some are,
// else, and where a host has more ranks than can share memory, "gloo".
std::string choose_host_backend(const std::vector<std::string>& hosts);

}  // namespace muster
