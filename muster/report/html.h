// Pieces of the report's page: its frame and style, tiles, tables. Text goes in as it is and comes
// out escaped; what is named `html` is markup already. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/base/strings.h"
#include "muster/draw/text_table.h"

namespace muster {

struct PageHead {
  std::string title{};
  std::string outcome{};  // in a word, as a badge beside the title
  std::string kind{};     // the badge's class: "good", "bad", "warn" or "idle"
  std::string line{};     // below the title
  Strings problems{};     // what could not be read, a line each
};

// The page's beginning, with all of its style: it loads nothing, and nothing in it can run.
std::string page_begin(const PageHead& head, std::string_view more_style = {});
std::string page_end(const std::string& folder);

// Lines of text, escaped; their ends stay.
std::string html_lines(std::string_view text);

struct Tile {
  std::string label{};
  std::string value{};
  std::string note{};  // below, smaller
  std::string kind{};  // a class: "good", "bad", "warn" or none
};
std::string html_tiles(const std::vector<Tile>& tiles);

// A section with a heading; empty if `html` is.
std::string html_section(std::string_view id,
                         std::string_view heading,
                         const std::string& html,
                         std::string_view note = {});

// Leaves out columns without any text. Shows at most `most_rows`, and says below how many more
// there are.
std::string html_table(const TableColumns& columns, const TableRows& rows, size_t most_rows = 500);

// Names and values, side by side. Empty values are left out.
struct Fact {
  std::string name{};
  std::string value{};
  bool code = false;  // a command or a path
};
std::string html_facts(const std::vector<Fact>& facts);

// The scale below tracks that are `seconds` long, from 0.
std::string html_scale(double seconds);

// The name with an upper-case letter first.
std::string with_capital(std::string name);

}  // namespace muster
