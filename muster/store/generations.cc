#include "muster/store/generations.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr const char* kAnnounced = "+";  // before the reason
constexpr const char* kLeft = "-";

std::string key_of_generation(const char* what, int generation, int rank) {
  return cat("muster/generations/", generation, "/", what, "/", rank);
}

}  // namespace

void announce_generation(Store& store, int generation, int world_size, const std::string& why) {
  for (int rank = 0; rank < world_size; ++rank)
    store.set(key_of_generation("why", generation, rank), kAnnounced + why);
}

bool has_come_to_generation(Store& store, int generation, int rank) {
  return store.check({key_of_generation("come", generation, rank)});
}

void come_to_generation(Store& store, int generation, int rank) {
  store.set(key_of_generation("come", generation, rank), "1");
}

std::optional<std::string> wait_for_generation(Store& store, int generation, int rank,
                                               std::chrono::milliseconds patience) {
  try {
    const std::string said = store.get(key_of_generation("why", generation, rank), patience);
    if (said.starts_with(kAnnounced)) return said.substr(1);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
  }
  return std::nullopt;
}

void stop_waiting_for_generation(Store& store, int generation, int rank) {
  store.compare_set(key_of_generation("why", generation, rank), "", kLeft);
}

}  // namespace muster
