// How it works: the launcher sets a key for each process, with the reason and the variables of its
// next attempt, and the process waits for that key. A process that waits no longer puts a mark in
// its place, if the launcher has not been there first.
#include "muster/store/generations.h"

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr auto kLeft = "-";  // stands in the place of an announcement

// Each process has keys of its own, so that nobody waits for another one's.
std::string key_of_generation(const char* what, const std::string& process, int generation) {
  return cat("muster/generations/", generation, "/", what, "/", process);
}

}  // namespace

// The process keeps this name when it becomes another rank.
std::string process_name(int attempt, int rank) {
  return cat(attempt, "/", rank);
}

// Bytes that are no UTF-8 are replaced: the reason quotes what programs say.
void announce_generation(Store& store, const std::string& process, const Generation& generation) {
  const nlohmann::json text = {{"why", generation.why}, {"variables", generation.variables}};
  store.set(key_of_generation("why", process, generation.number), json_text(text));
}

// Anybody who reaches the store can have written the text.
Generation generation_from(const std::string& text, int number) {
  std::string got = "JSON of more than 64 levels";
  if (!nests_too_deep(text)) {
    try {
      const auto json = nlohmann::json::parse(text);
      return {.number = number, .why = json.at("why"), .variables = json.at("variables")};
    } catch (const nlohmann::json::exception& error) {
      got = json_words(error.what());
    }
  }
  throw invalid_argument("generation ",
                         number,
                         ": expected its announcement in this store, got ",
                         printable(got),
                         "; see whether another program uses the store");
}

// The question is asked once, and waits for nobody.
bool has_come_to_generation(Store& store, const std::string& process, int generation) {
  return store.check({key_of_generation("come", process, generation)});
}

void come_to_generation(Store& store, const std::string& process, int generation) {
  store.set(key_of_generation("come", process, generation), "1");
}

// Nothing when the patience is over, or when this process had stopped waiting before.
std::optional<Generation> wait_for_generation(Store& store,
                                              const std::string& process,
                                              int generation,
                                              milliseconds patience) {
  try {
    const std::string said = store.get(key_of_generation("why", process, generation), patience);
    if (said == kLeft)
      return std::nullopt;
    return generation_from(said, generation);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout)
      throw;
  }
  return std::nullopt;
}

// An announcement that was there before stays, and the process has missed it.
void stop_waiting_for_generation(Store& store, const std::string& process, int generation) {
  store.compare_set(key_of_generation("why", process, generation), "", kLeft);
}

}  // namespace muster
