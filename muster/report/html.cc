// Every piece is a string of markup. Text is escaped at the place where it is put between tags, so
// that whoever makes a page passes it as it is; numbers are written without the user's locale. The
// content security policy keeps a page from loading or running anything, whatever a run's files
// say.
#include "muster/report/html.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <utility>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/base/version.h"
#include "muster/draw/xml_text.h"
#include "muster/report/html_style.h"

namespace muster {
namespace {

constexpr const char* kReportHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
)";

// Returns the number with so many significant digits.
std::string general(double value, int digits) {
  char text[40];
  const auto end =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::general, digits).ptr;
  return {text, end};
}

// "1234567" → "1 234 567", with narrow spaces at which no line breaks.
std::string grouped(std::string digits) {
  const size_t begin = digits.starts_with('-') ? 1 : 0;
  if (digits.size() - begin < 5)
    return digits;
  for (size_t at = digits.size(); at > begin + 3;) {
    at -= 3;
    digits.insert(at, "\u202f");
  }
  return digits;
}

// Whether the name ends with `part` as a word of its own: "step_seconds" does with "seconds".
bool ends_in_part(std::string_view name, std::string_view part) {
  if (!name.ends_with(part))
    return false;
  name.remove_suffix(part.size());
  return name.empty() || !std::isalnum(static_cast<unsigned char>(name.back()));
}

// Returns the name as text in which a line may break after each part: "samples_per_second".
std::string html_name(std::string_view name) {
  std::string html;
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find_first_of("_/.", begin), name.size() - 1) + 1;
    html += xml_text(name.substr(begin, end - begin));
    if (end < name.size())
      html += "<wbr>";
    begin = end;
  }
  return html;
}

}  // namespace

std::string page_begin(const PageHead& head, std::string_view more_style) {
  std::string html = cat(kReportHead,
                         "<title>",
                         xml_text(cat(head.title, ": ", head.outcome)),
                         "</title>\n",
                         kReportStyle,
                         more_style,
                         "</head>\n<body>\n<main>\n<header>\n<div class=\"line\"><h1>",
                         xml_text(head.title),
                         "</h1><span class=\"badge ",
                         head.kind,
                         "\">",
                         xml_text(head.outcome),
                         "</span></div>\n<p>",
                         xml_text(head.line),
                         "</p>\n</header>\n");
  html += sum_of<std::string>(head.problems, [&](const std::string& problem) {
    return cat("<p class=\"notice\">", xml_text(problem), "</p>\n");
  });
  return html;
}

std::string page_end(const std::string& folder) {
  return cat("<footer>Made by muster ",
             version(),
             " from ",
             xml_text(folder),
             "</footer>\n</main>\n</body>\n</html>\n");
}

std::string html_lines(std::string_view text) {
  std::string out;
  for (const std::string& line : split(text, '\n'))
    out += cat(out.empty() ? "" : "\n", xml_text(line));
  return out;
}

// A tile's kind is a class of the style sheet.
std::string html_tiles(const std::vector<Tile>& tiles) {
  std::string html = "<div class=\"tiles\">\n";
  for (const Tile& tile : tiles) {
    html += cat("<div class=\"tile\"><div class=\"label\">",
                html_name(tile.label),
                "</div><div class=\"value ",
                xml_text(tile.kind),
                "\">",
                xml_text(tile.value),
                "</div>");
    if (!tile.note.empty())
      html += cat("<div class=\"note\">", xml_text(tile.note), "</div>");
    html += "</div>\n";
  }
  return html + "</div>\n";
}

std::string html_section(std::string_view id,
                         std::string_view heading,
                         const std::string& html,
                         std::string_view note) {
  if (html.empty())
    return {};
  return cat("<section id=\"",
             xml_text(id),
             "\">\n<h2>",
             xml_text(heading),
             "</h2>\n",
             note.empty() ? "" : cat("<p class=\"soft small\">", xml_text(note), "</p>\n"),
             html,
             "</section>\n");
}

std::string html_table(const std::vector<HtmlColumn>& columns,
                       const std::vector<std::vector<std::string>>& rows,
                       size_t most_rows) {
  std::vector<size_t> shown;
  for (size_t i = 0; i < columns.size(); ++i) {
    const auto has_text = [i](const auto& row) {
      return !row.at(i).empty();
    };
    if (std::ranges::any_of(rows, has_text))
      shown.push_back(i);
  }
  // Numbers are aligned at the right, in the head of a column too.
  const auto cell = [&](const char* element, size_t column, const std::string& text) {
    return cat("<",
               element,
               columns[column].right ? " class=\"num\"" : "",
               ">",
               xml_text(text),
               "</",
               element,
               ">");
  };
  std::string html = "<div class=\"scroll\"><table>\n<thead><tr>";
  html +=
      sum_of<std::string>(shown, [&](const size_t i) { return cell("th", i, columns[i].name); });
  html += "</tr></thead>\n<tbody>\n";
  for (size_t r = 0; r < std::min(rows.size(), most_rows); ++r) {
    html += "<tr>";
    html += sum_of<std::string>(shown, [&](const size_t i) { return cell("td", i, rows[r][i]); });
    html += "</tr>\n";
  }
  html += "</tbody>\n</table></div>\n";
  if (rows.size() > most_rows) {
    const size_t more = rows.size() - most_rows;
    html += cat("<p class=\"soft small\">",
                plural(more, "more row"),
                word_for(more, " is", " are"),
                " in the JSON.</p>\n");
  }
  return html;
}

// Commands and paths are set in a fixed width.
std::string html_facts(const std::vector<Fact>& facts) {
  std::string html;
  for (const Fact& fact : facts) {
    if (fact.value.empty())
      continue;
    const std::string value = xml_text(fact.value);
    html += cat("<dt>",
                xml_text(fact.name),
                "</dt><dd>",
                fact.code ? cat("<code>", value, "</code>") : value,
                "</dd>\n");
  }
  return html.empty() ? html : cat("<dl>\n", html, "</dl>\n");
}

std::string html_scale(double seconds) {
  // The text of a tick that stands further to the right would leave the page.
  constexpr double kLastTick = 0.86;
  std::string html = "<span></span><div class=\"scale\">";
  for (const double tick : ticks_of(0, seconds, 4)) {
    const double place = tick / seconds;
    if (place <= kLastTick)
      html += cat("<span style=\"left:",
                  percent(place),
                  "\">",
                  tick == 0 ? "0" : span_text(tick),
                  "</span>");
  }
  return html + "</div>\n";
}

std::string with_capital(std::string name) {
  if (!name.empty())
    name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

// Whole numbers keep all of their digits, since steps and sizes are exact.
std::string number_text(double value) {
  if (std::isnan(value))
    return "NaN";
  if (std::isinf(value))
    return value > 0 ? "∞" : "-∞";
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return grouped(cat(static_cast<int64_t>(value)));
  if (std::abs(value) >= 1e3 && std::abs(value) < 1e9)
    return grouped(cat(std::llround(value)));
  return general(value, 4);
}

// Longer names come before those that they end in.
std::string unit_of(std::string_view name) {
  constexpr std::pair<const char*, const char*> kUnits[] = {{"samples_per_second", "samples/s"},
                                                            {"tokens_per_second", "tokens/s"},
                                                            {"images_per_second", "images/s"},
                                                            {"steps_per_second", "steps/s"},
                                                            {"per_second", "/s"},
                                                            {"milliseconds", "ms"},
                                                            {"microseconds", "µs"},
                                                            {"seconds", "s"},
                                                            {"bytes", "bytes"},
                                                            {"percent", "%"},
                                                            {"gib", "GiB"},
                                                            {"watts", "W"}};
  for (const auto& [part, unit] : kUnits) {
    if (ends_in_part(name, part))
      return unit;
  }
  return {};
}

// Sizes are written in units that people read.
std::string value_text(std::string_view name, double value) {
  const std::string unit = unit_of(name);
  if (unit == "bytes" && value >= 1024)
    return format_bytes(static_cast<uint64_t>(value));
  return unit.empty() ? number_text(value) : cat(number_text(value), "\u00a0", unit);
}

// Integers are used because printf would write the user's decimal point.
std::string percent(double share) {
  const long hundredths = std::lround(share * 10'000);
  return cat(hundredths / 100, ".", hundredths % 100 < 10 ? "0" : "", hundredths % 100, "%");
}

// The time zone is that of the machine that makes the page.
std::string wall_time_text(double seconds_since_1970) {
  return format_local_time(static_cast<int64_t>(seconds_since_1970));
}

// format_duration() counts in milliseconds, so shorter times are written here.
std::string span_text(double seconds) {
  constexpr double kMost = 1e9;
  if (seconds > 0 && seconds < 1e-3)
    return general(seconds * 1e6, 3) + "µs";
  if (seconds > 0 && seconds < 0.1)
    return general(seconds * 1e3, 3) + "ms";
  return format_duration(
      std::chrono::nanoseconds(std::llround(std::clamp(seconds, 0.0, kMost) * 1e9)));
}

std::vector<double> ticks_of(double least, double most, int count) {
  if (!(most > least) || count < 1)
    return {least};
  // The step is a power of ten, or the smallest multiple of it that gives few enough ticks.
  double step = std::pow(10, std::floor(std::log10((most - least) / count)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    if ((most - least) / (step * factor) <= count) {
      step *= factor;
      break;
    }
  }
  // The loop counts: a step may be too small to change a double that it is added to.
  const double first = std::ceil(least / step - 1e-9);
  std::vector<double> ticks;
  for (int i = 0; i <= count; ++i) {
    const double tick = (first + i) * step;
    const bool is_on_the_axis = tick <= most + step * 1e-9;  // NaN, of an infinite step, is not
    if (!is_on_the_axis)
      break;
    ticks.push_back(tick);
  }
  return ticks;
}

// Numbers on an axis are short: 10000 is "10k".
std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size < 1e-12)
    return "0";
  if (size >= 1e12 || size < 1e-4)
    return general(value, 3);
  if (size >= 1e9)
    return general(value / 1e9, 4) + "G";
  if (size >= 1e6)
    return general(value / 1e6, 4) + "M";
  if (size >= 1e4)
    return general(value / 1e3, 4) + "k";
  return general(value, 4);
}

}  // namespace muster
