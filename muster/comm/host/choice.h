// Chooses the backend that carries CPU tensors, for C++ (rendezvous/members.cc, sub_group.cc) and
// Python alike.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

// Takes the host_identity() of each rank. Returns "shm" where all are on one host, "shm+gloo" where
// some are, else, and where a host has more ranks than can share memory, "gloo".
std::string choose_host_backend(const Strings& hosts);

}  // namespace muster
