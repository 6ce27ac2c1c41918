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
  void add(const Host& host, const std::string& text);
  void add(const std::string& text);  // of the whole job

  // Likewise, of ranks that are elsewhere than was asked for.
  void warn(const Host& host, const std::string& text);
  void warn(const std::string& text);

  Strings finish(size_t num_hosts) const;

  // Those of the notes that are warnings.
  Strings warnings(size_t num_hosts) const;

 private:
  std::map<std::string, std::vector<const std::string*>> hosts_;  // text → names
  Strings order_;
  StringSet warnings_;
};

}  // namespace muster
