// The metrics of a training that was restored say where their file stood in the saved state, so
// that the lines after it can go. Metrics that were not added to the checkpoints cannot: their
// first line after a resume of the process decides.
#include "muster/train/metrics_lines.h"

#include <map>
#include <mutex>

#include "muster/base/lock.h"

namespace muster {

namespace {

struct FileLines {
  int64_t written = -1;
  bool is_told = false;  // how its training begins
  std::optional<int64_t> cut_after{};
  bool cuts_at_first_line = false;  // whatever its number
  int64_t resumes = 0;              // those of the process that it has been cut for
};

std::mutex g_mutex;
std::map<std::string, FileLines> g_files;  // by path

}  // namespace

int64_t last_written(const std::string& path) {
  const Lock lock(g_mutex);
  return g_files[path].written;
}

void note_written(const std::string& path, int64_t step) {
  const Lock lock(g_mutex);
  g_files[path].written = step;
}

// A training that begins again, or was saved without a line, is asked at its first line.
void note_beginning(const std::string& path, Beginning beginning, int64_t last) {
  const Lock lock(g_mutex);
  const bool is_known = beginning == Beginning::from_saved_one && last >= 0;
  g_files[path] = {.written = last,
                   .is_told = true,
                   .cut_after = is_known ? std::optional(last) : std::nullopt,
                   .cuts_at_first_line = beginning != Beginning::anew && !is_known};
}

// Nothing is cut twice: note_cut() follows.
std::optional<int64_t> cut_due(const std::string& path, int64_t step) {
  const int64_t resumes = ResumedTraining::of_process().times();
  const Lock lock(g_mutex);
  const FileLines& file = g_files[path];
  if (file.cut_after)
    return file.cut_after;
  const bool asks = !file.is_told && file.resumes < resumes;
  if (file.cuts_at_first_line || asks)
    return step - 1;
  return std::nullopt;
}

void note_cut(const std::string& path) {
  const int64_t resumes = ResumedTraining::of_process().times();
  const Lock lock(g_mutex);
  FileLines& file = g_files[path];
  file.cut_after.reset();
  file.cuts_at_first_line = false;
  file.resumes = resumes;
}

}  // namespace muster
