// Rows of text as aligned columns, for terminals.
#pragma once

#include <string>
#include <vector>

#include "muster/base/strings.h"

namespace muster {

struct TableColumn {
  std::string title;
  bool right = false;  // numbers are set right
};
using TableColumns = std::vector<TableColumn>;

using TableColumns = std::vector<TableColumn>;

// Cells, row by row.
using TableRows = std::vector<Strings>;

// A line of titles, then a line a row; columns two blanks apart, no blanks at a line's end. Every
// row has as many cells as there are columns. Control characters are shown as '?', so that a
// device's or host's name cannot disturb a terminal.
std::string format_table(const TableColumns& columns, const TableRows& rows);

}  // namespace muster
