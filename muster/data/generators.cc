// A list of generators. Collation joins those that the examples carry.
#include "muster/data/generators.h"

#include "muster/base/lists.h"
#include "muster/base/mapped.h"

namespace muster {

Generators::Generators(const Generator& rng) : all_{rng} {}

Generators::Generators(int64_t seed, int64_t epoch, const Int64s& indices) {
  for (const int64_t index : indices)
    all_.emplace_back(seed, epoch, index);
}

Generators Generators::collate(const std::vector<Generators>& examples) {
  Generators joined;
  for (const Generators& example : examples)
    append_all(joined.all_, example.all_);
  return joined;
}

}  // namespace muster
