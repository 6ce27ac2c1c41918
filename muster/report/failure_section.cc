// The section of the failure: its cause in a sentence, what that may mean, the launcher's card, and
// how every rank ended.
#include "muster/base/clock.h"
#include "muster/base/strings.h"

#include <string>

#include "muster/draw/xml_text.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/failure_meaning.h"
#include "muster/report/html.h"
#include "muster/report/job_sections.h"
#include "muster/report/number_text.h"

namespace muster {
namespace {

// The first line of a rank's message tells the error; the whole message is in the card.
std::string ends_table(const RankExits& exits) {
  TableRows rows;
  rows.reserve(exits.size());
  for (const RankExit& exit : exits) {
    rows.push_back({cat(exit.rank),
                    exit.host,
                    exit.device,
                    describe_end(exit),
                    duration_text(in_seconds(exit.after)),
                    exit.message.substr(0, exit.message.find('\n'))});
  }
  return html_table({{"rank", true}, {"host"}, {"device"}, {"end"}, {"after", true}, {"error"}},
                    rows);
}

// A fault of the job's surroundings is the cause by itself; otherwise the first rank to fail is.
std::string cause_text(const JobFailure& failure) {
  if (!failure.fault.empty())
    return cat("<p class=\"cause bad\">", xml_text(failure.fault), "</p>\n");
  if (failure.exits.empty())
    return {};
  const RankExit& first = failure.exits.front();
  auto html = cat(
      "<p class=\"cause bad\">rank ", first.rank, ": ", xml_text(cause_and_error(first)), "</p>\n");
  if (const auto meaning = failure_meaning(first); !meaning.empty())
    html += cat("<p>", xml_text(meaning), "</p>\n");
  if (const auto doubt = doubt_about(failure.exits, first); !doubt.empty())
    html += cat("<p>The cause is ", xml_text(doubt), "</p>\n");
  return html;
}

}  // namespace

std::string failure_section(const JobRun& run) {
  if (!run.failure)
    return {};
  const JobFailure& failure = *run.failure;
  std::string html = cause_text(failure);
  for (const auto& sentence : run.divergences)
    // A rank that left the others' collectives is often why they failed.
    html += cat("<p>", xml_text(sentence), "</p>\n");
  if (!failure.card.empty())
    html += cat("<pre>", html_lines(failure.card), "</pre>\n");
  if (failure.exits.size() > 1)
    html += cat("<details><summary>How every rank ended</summary>\n",
                ends_table(failure.exits),
                "</details>\n");
  return html_section("failure", "Failure", html);
}

}  // namespace muster
