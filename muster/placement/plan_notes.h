// Notes of a plan as they arise host by host; the same note of several hosts is one note that names
// them. A private header of the planner.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/device/inventory.h"

namespace muster {

class PlanNotes {
 public:
  explicit PlanNotes(size_t num_hosts) : num_hosts_(num_hosts) {}

  void add(const Host& host, const std::string& text, bool warns = false);
  void add(const std::string& text, bool warns = false);  // of the whole job

  // Likewise, of ranks that are elsewhere than was asked for.
  template <class... Told>
  void warn(const Told&... told) {
    add(told..., true);
  }

  Strings finish() const { return told(order_); }

  // Those of the notes that are warnings.
  Strings warnings() const;

 private:
  Strings told(const Strings& texts) const;

  size_t num_hosts_;
  std::map<std::string, std::vector<const std::string*>> hosts_;  // text → names
  Strings order_;
  StringSet warnings_;
};

}  // namespace muster
