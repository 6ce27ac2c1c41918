// A text is kept once, with the names of its hosts in the order in which they came. Which hosts to
// name is decided at the end, when all of them are known.
#include "muster/placement/plan_notes.h"

#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

// Returns the words before a note that say where it holds.
std::string prefix(const std::vector<const std::string*>& names, size_t num_hosts) {
  constexpr size_t kMaxNamed = 4;
  if (names.empty() || num_hosts == 1)
    return "";
  if (names.size() == 1)
    return cat("host ", *names[0], ": ");
  if (names.size() == num_hosts)
    return "every host: ";
  if (names.size() > kMaxNamed)
    return cat("hosts ", *names[0], ", ", *names[1], " and ", names.size() - 2, " more: ");
  const auto all = mapped(names, [](const std::string* name) { return *name; });
  return cat("hosts ", join(all, ", "), ": ");
}

}  // namespace

// The host must outlive this object, which keeps its name by address.
void PlanNotes::add(const std::string& text, bool warns) {
  if (hosts_.try_emplace(text).second)
    order_.push_back(text);
  if (warns)
    warnings_.insert(text);
}

void PlanNotes::add(const Host& host, const std::string& text, bool warns) {
  add(text, warns);
  hosts_.at(text).push_back(&host.name);
}

Strings PlanNotes::warnings() const {
  return told(filtered(order_, [&](const auto& text) { return warnings_.contains(text); }));
}

Strings PlanNotes::told(const Strings& texts) const {
  return mapped(texts,
                [&](const auto& text) { return prefix(hosts_.at(text), num_hosts_) + text; });
}

}  // namespace muster
