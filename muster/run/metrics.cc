#include "muster/run/metrics.h"

#include <fcntl.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

MetricsWriter::MetricsWriter(const std::string& path) : path_(path) {
  if (path.empty()) return;
  file_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file_.valid()) fail_errno(cat("metrics: cannot open '", path, "'"), errno);
}

void MetricsWriter::write(std::initializer_list<std::pair<const char*, double>> values) {
  if (file_.valid()) write_all(file_.get(), to_json_line(values) + "\n", path_);
}

std::string to_json_line(std::initializer_list<std::pair<const char*, double>> values) {
  nlohmann::ordered_json line;
  for (const auto& [name, value] : values) {
    const auto whole = static_cast<int64_t>(value);
    if (static_cast<double>(whole) == value) {
      line[name] = whole;
    } else {
      line[name] = value;
    }
  }
  return line.dump();
}

}  // namespace muster
