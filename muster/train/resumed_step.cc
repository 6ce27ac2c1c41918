#include "muster/train/resumed_step.h"

#include <map>
#include <mutex>

namespace muster {

namespace {

struct Resumed {
  int64_t step = 0;
  int attempt = 0;
};

std::mutex g_mutex;
std::optional<Resumed> g_resumed;
std::map<std::string, int> g_ready;  // by file: for which attempt

}  // namespace

void note_resumed(int64_t step, int attempt) {
  const std::lock_guard lock(g_mutex);
  const bool is_known = g_resumed && g_resumed->attempt == attempt;
  if (is_known && step == 0) return;  // one of several parts begins again, not the training
  g_resumed = {.step = step, .attempt = attempt};
}

int64_t resumed_step() {
  const std::lock_guard lock(g_mutex);
  return g_resumed ? g_resumed->step : 0;
}

std::optional<int64_t> resumed_step(const std::string& path) {
  const std::lock_guard lock(g_mutex);
  if (!g_resumed) return std::nullopt;
  const auto ready = g_ready.find(path);
  if (ready != g_ready.end() && ready->second == g_resumed->attempt) return std::nullopt;
  return g_resumed->step;
}

void note_made_ready(const std::string& path) {
  const std::lock_guard lock(g_mutex);
  if (g_resumed) g_ready[path] = g_resumed->attempt;
}

}  // namespace muster
