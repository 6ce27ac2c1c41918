#include <cstdlib>

#include "muster/checkpoint/files/pickle.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

// Whatever it says is among its values, and it takes no more bytes than there are.
void check_pickle(const std::string& text) {
  const Pickle pickle = read_pickle(text, "fuzz");
  if (pickle.root == nullptr || pickle.bytes > text.size() ||
      pickle.values.size() > 2 * text.size())
    std::abort();
  for (const PickledValue& value : pickle.values)
    for (const PickledValue* item : value.items)
      if (item == nullptr)
        std::abort();
}

}  // namespace

void fuzz_pickle(const std::string& text) {
  answer_or_error([&] { check_pickle(text); });
}

}  // namespace muster
