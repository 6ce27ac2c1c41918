// The first pass finds each column's width, the second writes the lines. A cell's control
// characters are replaced only when its line is whole: a '?' is as wide as the character it stands
// for.
#include "muster/draw/text_table.h"

#include <algorithm>

#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/utf8.h"

namespace muster {
namespace {

// Appends one line of cells. Blanks at its end, which a last column set left would have, are cut.
void append_line(std::string& out,
                 const TableColumns& columns,
                 const Ints& widths,
                 const Strings& cells) {
  std::string line;
  for (const size_t i : indices_of(columns)) {
    const std::string blanks(widths[i] - count_characters(cells[i]), ' ');
    if (i > 0)
      line += "  ";
    line += columns[i].right ? blanks + cells[i] : cells[i] + blanks;
  }
  line = printable(line);
  out += line.substr(0, line.find_last_not_of(' ') + 1);
  out += '\n';
}

}  // namespace

std::string format_table(const TableColumns& columns, const TableRows& rows) {
  Strings titles(columns.size());
  Ints widths(columns.size());
  for (const size_t i : indices_of(columns)) {
    titles[i] = columns[i].title;
    widths[i] = count_characters(titles[i]);
  }
  for (const auto& row : rows) {
    for (const size_t i : indices_of(columns))
      widths[i] = std::max(widths[i], count_characters(row.at(i)));
  }
  std::string out;
  append_line(out, columns, widths, titles);
  for (const auto& row : rows)
    append_line(out, columns, widths, row);
  return out;
}

}  // namespace muster
