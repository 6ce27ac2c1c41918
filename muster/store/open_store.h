// Opens the store that an endpoint names: what a rank does with MUSTER_STORE.
#pragma once

#include <string>

#include "muster/base/clock.h"
#include "muster/store/secret.h"
#include "muster/store/store.h"

namespace muster {

// A client of the server at "tcp://host:port" or "unix:path".
// Blocking: until connected, or `timeout`. Throws: as TcpStore; invalid_argument for another kind
// of endpoint.
SharedStore open_store(const std::string& endpoint, const Secret& secret, milliseconds timeout);

// The same with the job's secret, which its launcher has put into the environment.
SharedStore open_job_store(const std::string& endpoint, milliseconds timeout);

}  // namespace muster
