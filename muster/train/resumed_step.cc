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
std::map<std::string, int> g_taken;  // by file: of which attempt

}  // namespace

void note_resumed(int64_t step, int attempt) {
  const std::lock_guard lock(g_mutex);
  g_resumed = {.step = step, .attempt = attempt};
}

std::optional<int64_t> take_resumed(const std::string& path) {
  const std::lock_guard lock(g_mutex);
  if (!g_resumed) return std::nullopt;
  const auto [taken, is_new] = g_taken.try_emplace(path, g_resumed->attempt);
  if (!is_new && taken->second == g_resumed->attempt) return std::nullopt;
  taken->second = g_resumed->attempt;
  return g_resumed->step;
}

}  // namespace muster
