#include <cstdlib>

#include "muster/launch/exit_report.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/run_record.h"
#include "muster/launch/score_file.h"
#include "muster/report/job_run.h"
#include "muster/report/metrics_file.h"
#include "muster/report/top_rows.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/scratch_file.h"

namespace muster {

namespace {

void check_record(const RunRecord& record) {
  const std::string written = run_record_to_json(record);
  if (run_record_to_json(run_record_from_json(written, "fuzz")) != written)
    std::abort();
}

void check_metrics(const MetricsFile& metrics) {
  for (const Series& series : metrics.series) {
    if (std::ssize(series.points) > series.num_values)
      std::abort();
  }
}

}  // namespace

// What the folder of a run says, what launchers note in the runtime folder, and speeds of GPUs.
void fuzz_records(const std::string& text) {
  const ScratchFile file(text);
  answer_or_error([&] { check_record(run_record_from_json(text, "fuzz")); });
  answer_or_error([&] { job_failure_from(text, "/folder"); });
  answer_or_error([&] { check_metrics(read_metrics(file.path())); });
  answer_or_error([&] { pack_top_rows(unpack_top_rows(text)); });
  answer_or_error([&] { read_scores(file.path()); });
  if (const auto note = job_note_from(text))
    job_note_text(*note);
}

}  // namespace muster
