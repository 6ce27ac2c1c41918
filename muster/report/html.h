// Pieces of the report's page: its frame and style, tiles, tables, numbers as people read them.
// Text goes in as it is and comes out escaped; what is named `html` is markup already. Pure.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

struct PageHead {
  std::string title = {};
  std::string outcome = {};                // in a word, as a badge beside the title
  std::string kind = {};                   // the badge's class: "good", "bad", "warn" or "idle"
  std::string line = {};                   // below the title
  std::vector<std::string> problems = {};  // what could not be read, a line each
};

// The page's beginning, with all of its style: it loads nothing, and nothing in it can run.
std::string page_begin(const PageHead& head, std::string_view more_style = {});
std::string page_end(const std::string& folder);

// Lines of text, escaped; their ends stay.
std::string html_lines(std::string_view text);

struct Tile {
  std::string label = {};
  std::string value = {};
  std::string note = {};  // below, smaller
  std::string kind = {};  // a class: "good", "bad", "warn" or none
};
std::string html_tiles(const std::vector<Tile>& tiles);

// A section with a heading; empty if `html` is.
std::string html_section(std::string_view id,
                         std::string_view heading,
                         const std::string& html,
                         std::string_view note = {});

struct HtmlColumn {
  std::string name = {};
  bool right = false;  // numbers
};
// Leaves out columns without any text. Shows at most `most_rows`, and says below how many more
// there are.
std::string html_table(const std::vector<HtmlColumn>& columns,
                       const std::vector<std::vector<std::string>>& rows,
                       size_t most_rows = 500);

// Names and values, side by side. Empty values are left out.
struct Fact {
  std::string name = {};
  std::string value = {};
  bool code = false;  // a command or a path
};
std::string html_facts(const std::vector<Fact>& facts);

// The scale below tracks that are `seconds` long, from 0.
std::string html_scale(double seconds);

// "0.0812", "12 345", "1.2e-05": four significant digits.
std::string number_text(double value);
std::string number_text(std::integral auto value) {
  return number_text(static_cast<double>(value));
}

// The name with an upper-case letter first.
std::string with_capital(std::string name);

// The number with the unit that the name tells: "samples_per_second" → "1 204 samples/s".
std::string value_text(std::string_view name, double value);
// "samples/s", "s", "bytes", "°C"; empty: not told by the name.
std::string unit_of(std::string_view name);

// A share of 1 as "12.34%"; never in the user's locale.
std::string percent(double share);

// "2026-11-23 22:37:14" in this machine's time zone; "1m23s".
std::string wall_time_text(double seconds_since_1970);
std::string span_text(double seconds);

// Returns where ticks go in [least, most]: at most `count` of them, at round numbers.
std::vector<double> ticks_of(double least, double most, int count);
// "0.25", "10k", "1M".
std::string tick_text(double value);

}  // namespace muster
