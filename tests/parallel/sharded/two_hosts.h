// Four ranks as two hosts of two, for what is divided inside a host and averaged over hosts.
#pragma once

#include <vector>

#include "muster/comm/process_group.h"

namespace muster::testing {

struct TwoHosts {
  explicit TwoHosts(ProcessGroup& group)
      : inside(own_of(group, {0, 1}, {2, 3})), across(own_of(group, {0, 2}, {1, 3})) {}

  ProcessGroup inside, across;

 private:
  static ProcessGroup own_of(ProcessGroup& group,
                             const std::vector<int>& one,
                             const std::vector<int>& other) {
    auto first = group.new_group(one);
    auto second = group.new_group(other);
    return first ? *first : *second;
  }
};

}  // namespace muster::testing
