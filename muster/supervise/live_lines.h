// The lines of a terminal that are still being written, below those that are finished: progress
// bars, prompts. One line for all streams that show the same, "[0-7] 45% ×8"; drawn anew whenever
// one changes. Used by Output, on a terminal only. LiveLines is pure.
#pragma once

#include <map>
#include <string>

namespace muster {

// Whether a terminal that calls itself `name` (TERM) can be told to draw a line anew.
bool draws_anew(const std::string& name);
// Whether the descriptor is such a terminal.
bool draws_anew(int fd);

struct LiveLine {
  int number;
  std::string prefix;
  std::string text;
};

class LiveLines {
 public:
  // The stream `id` shows `text` from now on; empty: nothing more. `number` and `prefix` are as
  // LineCollapser has them. True when that is not what it has shown.
  bool set(size_t id, int number, const std::string& prefix, const std::string& text);

  bool empty() const { return lines_.empty(); }

  // Takes away what draw() has put there. The cursor is where that left it, or below, after a line
  // of somebody else's.
  static std::string erase();

  // At most `rows` lines. Afterwards the cursor is where they begin; behind the text if there is
  // one only.
  std::string draw(size_t rows) const;

 private:
  std::map<size_t, LiveLine> lines_;
};

}  // namespace muster
