// One pointer or a list of them where an option takes either: `.schedule = &one` and `.schedule = {&one,
// &two}`.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

namespace muster {

template <class Part>
class Several {
 public:
  Several() = default;
  Several(Part* part) : parts_{part} {}
  Several(Part& part) : parts_{&part} {}
  Several(std::initializer_list<Part*> parts) : parts_(parts) {}
  Several(std::vector<Part*> parts) : parts_(std::move(parts)) {}

  auto begin() const { return parts_.begin(); }
  auto end() const { return parts_.end(); }
  bool empty() const { return parts_.empty(); }
  size_t size() const { return parts_.size(); }

 private:
  std::vector<Part*> parts_;
};

}  // namespace muster
