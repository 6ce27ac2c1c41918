// A row for each backend. What a row does not name the backend cannot do.
#include "muster/comm/capabilities.h"

#include <algorithm>
#include <array>

#include "muster/base/error.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

constexpr std::array kCapabilities = {
    Capabilities{.backend = "gloo", .can_be_interrupted = true},
    Capabilities{
        .backend = "nccl", .on_gpus = true, .matches_by_order = true, .can_be_interrupted = true},
    Capabilities{.backend = "shm",
                 .copies_gpus = true,
                 .compares_calls = true,
                 .ends_waits = true,
                 .ends_messages = true,
                 .records_calls = true,
                 .can_be_interrupted = true,
                 .leaves_without_store = true},
    Capabilities{.backend = "shm+gloo", .records_calls = true, .can_be_interrupted = true},
    Capabilities{
        .backend = "mpi", .copies_gpus = true, .ends_messages = true, .records_calls = true},
};

}  // namespace

// The user may have given the name, so that an unknown one is an error of theirs.
const Capabilities& capabilities_of(const std::string& backend) {
  const auto found = std::ranges::find_if(
      kCapabilities, [&](const Capabilities& can) { return can.backend == backend; });
  if (found != kCapabilities.end())
    return *found;
  throw invalid_argument(
      "backend: expected ", join(known_backends(), ", "), ", got '", backend, "'; correct it");
}

Strings known_backends() {
  return mapped(kCapabilities, [&](const Capabilities& can) { return std::string(can.backend); });
}

}  // namespace muster
