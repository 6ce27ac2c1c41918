// Every piece is a string of markup. Text is escaped at the place where it is put between tags, so
// that whoever makes a page passes it as it is. The content security policy keeps a page from
// loading or running anything, whatever a run's files say.
#include "muster/report/html.h"

#include <algorithm>
#include <cctype>
#include <ranges>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/version.h"
#include "muster/draw/xml_text.h"
#include "muster/report/html_style.h"
#include "muster/report/number_text.h"

namespace muster {
namespace {

constexpr auto kReportHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
)";

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
  auto html = cat(kReportHead,
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
  html += sum_of<std::string>(head.problems, [&](const auto& problem) {
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
  for (const auto& line : split(text, '\n'))
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

std::string html_table(const TableColumns& columns, const TableRows& rows, size_t most_rows) {
  const auto shown = filtered_indices(columns.size(), [&](size_t column) {
    return any_of(rows, [&](const auto& row) { return !row.at(column).empty(); });
  });
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
  for (const size_t column : shown)
    html += cell("th", column, columns[column].title);
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows | std::views::take(most_rows)) {
    html += "<tr>";
    for (const size_t column : shown)
      html += cell("td", column, row[column]);
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
    const auto value = xml_text(fact.value);
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
                  tick == 0 ? "0" : duration_text(tick),
                  "</span>");
  }
  return html + "</div>\n";
}

std::string with_capital(std::string name) {
  if (!name.empty())
    name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

}  // namespace muster
