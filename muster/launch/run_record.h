// run.json in a run's folder: what was started there, when, and how each attempt of its ranks
// ended. Written by launchers (run_recorder.h), read by `muster report`. A value and its JSON; no
// I/O.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/launch/rank_exit.h"

namespace muster {

struct AttemptRecord {
  int attempt = 0;
  // In it the ranks that failed before were replaced, and the others went on.
  bool in_place = false;
  double began = 0;  // Units, of all times here: seconds since 1970
  std::optional<double> ended{};
  RankExits exits{};    // in order of death; of the first failure with its stack
  std::string fault{};  // why all were killed where no rank is the cause; empty: no
};

// One start of `muster run`, or of a program that starts itself.
struct LaunchRecord {
  std::string run_id{};
  Strings argv{};
  std::vector<Strings> more_argvs{};  // of the job's other programs
  std::string work_dir{};             // where the ranks ran
  std::string host{};                 // of the launcher
  std::string muster_version{};
  // Ranks of the last attempt told these; they are empty for programs that are not muster's.
  std::string libtorch{};  // its version
  std::string backend{};   // of the ranks' group
  Strings device_names{};  // each once
  int pid = 0;
  int max_restarts = 0;
  double began = 0;
  std::optional<double> ended{};  // nothing: it goes on, or was killed
  int exit_code = 0;
  std::string outcome{};  // "done", "failed", "stopped", "time limit"; empty while it goes on
  std::vector<AttemptRecord> attempts{};
};

struct RunRecord {
  std::vector<LaunchRecord> launches{};  // oldest first
  // The machine that the last of them found; nothing where hosts are several.
  std::optional<Inventory> machine{};
};

// A file keeps this many, so that a job that restarts for ever does not fill the disk.
inline constexpr size_t kMostLaunches = 50;
inline constexpr size_t kMostAttempts = 500;  // of each launch; the first ones go

// Schema "muster.run/1".
std::string run_record_to_json(const RunRecord& record);

// Throws: invalid_argument naming `source` when it is no such JSON.
RunRecord run_record_from_json(const std::string& text, const std::string& source);

}  // namespace muster
