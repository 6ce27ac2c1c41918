// How an activity file begins: it is opened for its one process, and its header says whose it is.
// For activity.cc; a private header.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/fd.h"
#include "muster/trace/activity_layout.h"

namespace muster {

struct ActivityOwner;

// The calling thread's number in the kernel.
uint32_t own_thread();

// Throws: io; failed_precondition where another process writes to the file.
Fd open_activity_file(const std::string& path);

// Fills a header of zeros in. The calling thread is the main thread.
void fill_header(ActivityHeader& header, const ActivityOwner& owner);

}  // namespace muster
