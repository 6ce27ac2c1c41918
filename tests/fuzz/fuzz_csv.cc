#include <cstdlib>
#include <vector>

#include "muster/data/readers/csv_text.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

void fuzz_csv(const std::string& text) {
  const std::string name = "fuzz";
  answer_or_error([&] {
    const CsvText csv(text, name, {.missing = 0.0});
    std::vector<int64_t> columns;
    for (int64_t column = 0; column < csv.columns(); ++column)
      columns.push_back(column);
    if (csv.values(columns).size() % columns.size() != 0)
      std::abort();
    csv.find(CsvColumn(text.substr(0, 4)));
  });
}

}  // namespace muster
