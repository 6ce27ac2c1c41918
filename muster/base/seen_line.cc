// How it works: what comes after the last carriage return is what stood there in the end. A long
// line is cut between two characters.
#include "muster/base/seen_line.h"

#include "muster/base/strings.h"
#include "muster/base/utf8.h"

namespace muster {

// Programs for Windows end their lines in a carriage return, which draws nothing over.
std::string seen_line(std::string_view line) {
  constexpr size_t kMostBytes = 1000;
  while (line.ends_with('\r'))
    line.remove_suffix(1);
  line.remove_prefix(line.rfind('\r') + 1);  // npos + 1 is 0
  if (line.size() <= kMostBytes)
    return std::string(line);
  return cat(cut_text(line, kMostBytes), " … (", line.size(), " bytes)");
}

}  // namespace muster
