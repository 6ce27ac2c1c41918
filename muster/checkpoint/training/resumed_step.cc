#include "muster/checkpoint/training/resumed_step.h"

#include <map>
#include <mutex>

namespace muster {

namespace {

struct Resumed {
  int64_t step = 0;
  int attempt = 0;
};

struct MetricsFile {
  int64_t written = -1;
  bool is_told = false;  // how its training begins
  std::optional<int64_t> cut_after = {};
  bool cuts_at_first_line = false;  // whatever its number
  int64_t resumes = 0;              // of the process, that it has been cut for
};

std::mutex g_mutex;
std::optional<Resumed> g_resumed;
int64_t g_resumes = 0;
std::map<std::string, MetricsFile> g_files;  // by path

}  // namespace

void note_resumed(int64_t step, int attempt) {
  const std::lock_guard lock(g_mutex);
  ++g_resumes;
  const bool is_known = g_resumed && g_resumed->attempt == attempt;
  if (is_known && step == 0)
    return;  // one of several parts begins again, not the training
  g_resumed = {.step = step, .attempt = attempt};
}

int64_t resumed_step() {
  const std::lock_guard lock(g_mutex);
  return g_resumed ? g_resumed->step : 0;
}

int64_t last_written(const std::string& path) {
  const std::lock_guard lock(g_mutex);
  return g_files[path].written;
}

void note_written(const std::string& path, int64_t step) {
  const std::lock_guard lock(g_mutex);
  g_files[path].written = step;
}

void note_beginning(const std::string& path, Beginning beginning, int64_t last) {
  const std::lock_guard lock(g_mutex);
  const bool is_known = beginning == Beginning::from_saved_one && last >= 0;
  g_files[path] = {.written = last,
                   .is_told = true,
                   .cut_after = is_known ? std::optional(last) : std::nullopt,
                   .cuts_at_first_line = beginning != Beginning::anew && !is_known};
}

std::optional<int64_t> cut_due(const std::string& path, int64_t step) {
  const std::lock_guard lock(g_mutex);
  const MetricsFile& file = g_files[path];
  if (file.cut_after)
    return file.cut_after;
  if (file.cuts_at_first_line || (!file.is_told && file.resumes < g_resumes))
    return step - 1;
  return std::nullopt;
}

void note_cut(const std::string& path) {
  const std::lock_guard lock(g_mutex);
  MetricsFile& file = g_files[path];
  file.cut_after.reset();
  file.cuts_at_first_line = false;
  file.resumes = g_resumes;
}

}  // namespace muster
