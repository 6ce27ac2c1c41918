// Reads a whole data file, plain or gzip, with a limit on its uncompressed size. Called by the
// dataset readers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

// Whether the bytes start like a gzip file.
bool is_gzip(std::string_view bytes);

// Uncompresses all members of a gzip file. `name` appears in messages.
// Throws: invalid_argument if it is damaged, truncated, followed by other bytes, or larger than
// `max_bytes` uncompressed.
std::string gunzip(std::string_view bytes, uint64_t max_bytes, const std::string& name);

// `path`, or else that with .gz, if there is such a file.
std::optional<std::string> find_data_file(const std::string& path);

// The content of a regular file, uncompressed if it is gzip (whatever its name).
// Throws: io if it cannot be read or is not a regular file; invalid_argument as gunzip.
std::string read_data_file(const std::string& path, uint64_t max_bytes);

}  // namespace muster
