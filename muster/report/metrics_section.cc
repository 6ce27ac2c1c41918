// The section of the numbers in metrics.jsonl: line charts, and a table of all series.
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

#include <string>
#include <vector>

#include "muster/report/html.h"
#include "muster/report/job_sections.h"
#include "muster/report/line_chart.h"
#include "muster/report/number_text.h"

namespace muster {
namespace {

// The table also has series without a finite number, of which no chart can be drawn.
std::string numbers_table(const std::vector<Series>& series) {
  TableRows rows;
  for (const Series& one : series) {
    if (one.num_values == 0) {
      rows.push_back({one.name, "0", "", "", "", "", number_text(one.num_missing)});
      continue;
    }
    rows.push_back({one.name,
                    number_text(one.num_values),
                    number_text(one.first),
                    number_text(one.last),
                    cat(number_text(one.least), " at ", number_text(one.least_step)),
                    cat(number_text(one.most), " at ", number_text(one.most_step)),
                    one.num_missing == 0 ? "" : number_text(one.num_missing)});
  }
  return html_table({{"name"},
                     {"values", true},
                     {"first", true},
                     {"last", true},
                     {"least", true},
                     {"most", true},
                     {"not finite", true}},
                    rows);
}

}  // namespace

std::string metrics_section(const JobRun& run) {
  if (!run.metrics.found)
    return {};
  if (run.metrics.series.empty())
    return html_section(
        "metrics", "Metrics", "<p class=\"soft\">metrics.jsonl holds no number yet.</p>\n");
  // A program may log without steps; its values are then numbered by the lines of the file.
  const std::string x_name = run.metrics.has_steps ? "step" : "line";
  std::string html = "<div class=\"charts\">\n";
  html += sum_of<std::string>(charts_of(run.metrics.series),
                              [&](const auto& chart) { return line_chart(chart, x_name); });
  html += cat("</div>\n<details><summary>All of them as numbers</summary>\n",
              numbers_table(run.metrics.series),
              "</details>\n");
  return html_section("metrics", "Metrics", html);
}

}  // namespace muster
