// Reading a data file whole, plain or gzip-compressed, with a bound on what it may unpack to.
// Called by the readers of data sets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

// True when the bytes begin like a gzip file.
bool is_gzip(std::string_view bytes);

// Unpacks all members of a gzip file. `name` is what messages call it.
// Throws: invalid_argument when it is damaged, cut short, followed by other bytes, or unpacks to more than
// `max_bytes`.
std::string gunzip(std::string_view bytes, uint64_t max_bytes, const std::string& name);

// The content of a regular file, unpacked when it is gzip (whatever its name is).
// Throws: io when it cannot be read or is no regular file; invalid_argument as gunzip does.
std::string read_data_file(const std::string& path, uint64_t max_bytes);

// Foreign text for a message: at most 40 characters, others than printable ASCII as \xNN.
std::string shown(std::string_view text);

}  // namespace muster
