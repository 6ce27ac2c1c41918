// The page is made from the files of the run's folder alone, so it can be made anew at any time, on
// any machine that has them.
#include "muster/cli/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/named_file.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/usage.h"
#include "muster/launch/job_activity.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/run_folder.h"
#include "muster/report/report.h"

namespace muster {

namespace {

constexpr auto kReportExamples = R"(Examples:
  muster report                          the newest run here, into runs/latest/report.html
  muster report runs/digits              that one; of a job or of muster tasks
  muster report --out page.html          into this file
  muster report --ranks                  which rank left the others' collectives first
  muster report --trace runs/digits      the trace of a job whose launcher was killed
  muster report --json | jq .outcome     the same for programs
)";

// Without a flag the page is written.
struct ReportOptions {
  std::string folder = "runs/latest";
  std::string out;
  bool json = false;
  bool ranks = false;
  bool trace = false;
};

// Throws: failed_precondition if a job of this host still writes to the folder.
void expect_no_job_in(const std::string& folder) {
  for (const JobNote& job : running_jobs()) {
    // A job's folder may be named by another path, such as runs/latest.
    std::error_code unknown;
    if (!std::filesystem::equivalent(job.run_dir, folder, unknown))
      continue;
    throw failed_precondition("--trace: expected the folder of a job that has ended, got '",
                              printable(folder),
                              "', in which job ",
                              job.id,
                              " runs; it makes its trace itself when it ends");
  }
}

// Makes trace.json of the events that ranks have left, which the launcher would have done.
void merge_trace_in(const std::string& folder) {
  expect_no_job_in(folder);
  const auto made = merge_left_trace(folder);
  if (made.empty()) {
    throw failed_precondition(
        "--trace: expected events that ranks have left in '",
        printable(folder),
        "/trace', got none; `muster run --trace` writes them, and makes trace.json of them");
  }
  write_all(STDOUT_FILENO, printable(made) + "\n");
}

// Writes the page and prints its path.
void write_page(const ReportOptions& options, const std::string& folder, const std::string& html) {
  const auto path = text_or(options.out, folder + "/report.html");
  check_named_file("--out", path);
  check_not_of_run("--out", path, folder);
  write_named_file(path, html);
  write_all(STDOUT_FILENO, printable(path) + "\n");
}

}  // namespace

void add_report(CLI::App& app) {
  auto* const command =
      app.add_subcommand("report", "Make a page of a run: curves, attempts, failures, placement")
          ->footer(kReportExamples);
  const auto options = std::make_shared<ReportOptions>();
  command->add_option("RUN_DIR", options->folder, "Folder of the run [runs/latest]");
  auto* const json =
      command->add_flag("--json", options->json, "Instead of the page, print its contents as JSON");
  auto* const ranks =
      command
          ->add_flag("--ranks",
                     options->ranks,
                     "Instead of the page, print which rank left the common sequence of "
                     "collectives first, and where")
          ->excludes(json);
  auto* const trace = command
                          ->add_flag("--trace",
                                     options->trace,
                                     "Instead of the page, write trace.json from the ranks' own "
                                     "files (for a `muster run --trace` whose launcher was killed)")
                          ->excludes(json)
                          ->excludes(ranks);
  command->add_option("--out", options->out, "File to write the page into [RUN_DIR/report.html]")
      ->type_name("FILE")
      ->excludes(json)
      ->excludes(ranks)
      ->excludes(trace);
  command->callback([options] {
    const auto folder = resolve_run_folder(options->folder);
    if (options->trace)
      return merge_trace_in(folder);
    if (options->ranks)
      return write_all(STDOUT_FILENO, ranks_report(folder));
    // Page and JSON are made of the same values.
    const RunReport report = make_report(folder);
    if (options->json) {
      write_all(STDOUT_FILENO, report.json);
    } else {
      write_page(*options, folder, report.html);
    }
  });
}

}  // namespace muster
