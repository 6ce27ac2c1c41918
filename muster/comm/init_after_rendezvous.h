// Makes the default process group of ranks that have a store already, which muster::run keeps for
// itself too.
#pragma once

#include <optional>

#include "muster/comm/init.h"
#include "muster/comm/rendezvous/rendezvous.h"

namespace muster {

// init_process_group and init_process_group_of_some for ranks that have met already.
ProcessGroup init_process_group(const Rendezvous& rendezvous, const InitOptions& options);
std::optional<ProcessGroup> init_process_group_of_some(const Rendezvous& rendezvous,
                                                       const InitOptions& options,
                                                       bool takes_part);

}  // namespace muster
