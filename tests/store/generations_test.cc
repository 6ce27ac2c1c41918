#include "muster/store/generations.h"

#include <thread>

#include "tests/store/support.h"
#include "tests/support/memory_store.h"

namespace muster {
namespace {

using namespace store_test;

TEST(Generations, EachProcessHearsWhyAndWhatItIsThere) {
  MemoryStore store;
  const std::string first = process_name(0, 2), second = process_name(1, 2);
  announce_generation(
      store, first, {.number = 2, .why = "rank 1: killed", .variables = {{"RANK", "0"}}});
  announce_generation(
      store, second, {.number = 2, .why = "rank 1: killed", .variables = {{"RANK", "1"}}});
  const auto heard = wait_for_generation(store, first, 2, kLong);
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->number, 2);
  EXPECT_EQ(heard->why, "rank 1: killed");
  EXPECT_EQ(heard->variables, (Environment{{"RANK", "0"}}));
  EXPECT_EQ(wait_for_generation(store, second, 2, kLong)->variables.at("RANK"), "1");
  EXPECT_FALSE(wait_for_generation(store, first, 3, std::chrono::milliseconds(1)));
}

TEST(Generations, AProcessThatWaitsHearsOfIt) {
  MemoryStore store;
  std::optional<Generation> heard;
  std::thread waits([&] { heard = wait_for_generation(store, "0/1", 3, kLong); });
  announce_generation(store, "0/1", {.number = 3, .why = "no UTF-8: \xe9"});
  waits.join();
  EXPECT_TRUE(heard);
}

TEST(Generations, WaitingCanBeStopped) {
  MemoryStore store;
  std::optional<Generation> heard = Generation();
  std::thread waits([&] { heard = wait_for_generation(store, "0/0", 1, kLong); });
  stop_waiting_for_generation(store, "0/0", 1);
  waits.join();
  EXPECT_FALSE(heard);
  EXPECT_FALSE(wait_for_generation(store, "0/0", 1, kLong)) << "also a wait that begins later";
}

TEST(Generations, WhatSomebodyElseWroteIsRefused) {
  for (const std::string& text : {std::string("no JSON"),
                                  std::string("{}"),
                                  std::string(R"({"why":3,"variables":{}})"),
                                  std::string(R"({"why":"","variables":{"RANK":0}})"),
                                  std::string(100'000, '[')}) {
    try {
      generation_from(text, 4);
      ADD_FAILURE() << text.substr(0, 80);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_TRUE(error.message().starts_with("generation 4: expected its announcement"));
      EXPECT_EQ(error.message().find("json.exception"), std::string::npos) << error.message();
    }
  }
}

TEST(Generations, WhoHasComeIsKnownByGeneration) {
  MemoryStore store;
  come_to_generation(store, "0/0", 1);
  EXPECT_TRUE(has_come_to_generation(store, "0/0", 1));
  EXPECT_FALSE(has_come_to_generation(store, "0/1", 1));
  EXPECT_FALSE(has_come_to_generation(store, "0/0", 2));
}

}  // namespace
}  // namespace muster
