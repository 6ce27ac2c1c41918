// One pointer or a list, for options that take either: `.schedule = &one` and `.schedule = {&one,
// &two}`. Null pointers are skipped: `.schedule = warmup ? &schedule : nullptr`.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace muster {

template <class Part>
class Several {
 public:
  Several() = default;
  Several(Part* part) : Several(std::vector<Part*>{part}) {}
  Several(Part& part) : parts_{&part} {}
  Several(std::initializer_list<Part*> parts) : Several(std::vector<Part*>(parts)) {}
  Several(std::vector<Part*> parts) : parts_(std::move(parts)) { std::erase(parts_, nullptr); }

  auto begin() const { return parts_.begin(); }
  auto end() const { return parts_.end(); }
  bool empty() const { return parts_.empty(); }
  size_t size() const { return parts_.size(); }

 private:
  std::vector<Part*> parts_;
};

using Optimizers = Several<torch::optim::Optimizer>;

}  // namespace muster
