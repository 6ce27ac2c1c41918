// A matrix of links as tests compare it: a line of words for each row.
#pragma once

#include <string>
#include <vector>

#include "muster/device/links.h"

namespace muster {

inline std::vector<std::string> link_rows(const std::vector<std::vector<Link>>& links) {
  std::vector<std::string> rows;
  for (const auto& row : links) {
    rows.emplace_back();
    for (const Link& link : row)
      rows.back() += (rows.back().empty() ? "" : " ") + to_string(link);
  }
  return rows;
}

}  // namespace muster
