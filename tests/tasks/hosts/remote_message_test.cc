#include "muster/tasks/hosts/remote_message.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "muster/base/error.h"

namespace muster {
namespace {

template <class Message>
Message through_a_line(const Message& message) {
  const std::string line = to_line(message);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  return std::get<Message>(remote_message_from(line.substr(0, line.size() - 1)));
}

std::string all_bytes() {
  std::string bytes;
  for (int i = 0; i < 256; ++i)
    bytes += static_cast<char>(i);
  return bytes;
}

TEST(RemoteMessage, AStartComesAsItWas) {
  const RemoteStart start{.id = 7,
                          .task = {.name = "a \xff",
                                   .argv = {"sh", "-c", "echo \"\xc3\xa9\"", ""},
                                   .environment = {{"A", "1=2\n"}, {"B", ""}},
                                   .directory = "/x y",
                                   .ranks = 4},
                          .attempt = 2,
                          .gpus = {"GPU-1", "GPU-0"},
                          .units = 500,
                          .memory_bytes = uint64_t{1} << 40,
                          .cpus = 8,
                          .bound = {0, 1, 2, 9},
                          .log = "/r/logs/a/2.log"};
  const RemoteStart got = through_a_line(start);
  EXPECT_EQ(got.id, 7);
  EXPECT_EQ(got.task, start.task);
  EXPECT_EQ(got.attempt, 2);
  EXPECT_EQ(got.gpus, start.gpus);
  EXPECT_EQ(got.units, 500);
  EXPECT_EQ(got.memory_bytes, start.memory_bytes);
  EXPECT_EQ(got.cpus, 8);
  EXPECT_EQ(got.bound, start.bound);
  EXPECT_EQ(got.log, start.log);
}

TEST(RemoteMessage, OutputIsBytes) {
  const RemoteOutput got = through_a_line(RemoteOutput{.id = 1, .bytes = all_bytes()});
  EXPECT_EQ(got.bytes, all_bytes());
}

TEST(RemoteMessage, AnEndComesAsItWas) {
  RemoteEnded ended;
  ended.end.kind = TaskEnd::Kind::refused;
  ended.end.exit.exit.id = 3;
  ended.end.exit.exit.signal = SIGKILL;
  ended.end.exit.exit.sent_signal = SIGTERM;
  ended.end.exit.exit.core_dumped = true;
  ended.end.exit.ended = {"process 4"};
  ended.end.exit.killed = {"process 5"};
  ended.end.why_not = "no";
  ended.end.out_of_memory = true;
  const TaskEnd got = through_a_line(ended).end;
  EXPECT_EQ(got.kind, TaskEnd::Kind::refused);
  EXPECT_EQ(got.exit.exit.id, 3);
  EXPECT_EQ(got.exit.exit.signal, SIGKILL);
  EXPECT_EQ(got.exit.exit.sent_signal, SIGTERM);
  EXPECT_TRUE(got.exit.exit.core_dumped);
  EXPECT_EQ(got.exit.ended, ended.end.exit.ended);
  EXPECT_EQ(got.exit.killed, ended.end.exit.killed);
  EXPECT_EQ(got.why_not, "no");
  EXPECT_TRUE(got.out_of_memory);
}

TEST(RemoteMessage, AnInventoryIsNotSimulatedAtTheOtherEnd) {
  const RemoteInventory host{.version = "1",
                             .inventory = {.hosts = {{.name = "b", .num_cores = 3}}}};
  const RemoteInventory got = through_a_line(host);
  EXPECT_FALSE(got.inventory.simulated);
  ASSERT_EQ(got.inventory.hosts.size(), 1U);
  EXPECT_EQ(got.inventory.hosts[0].num_cores, 3);
}

TEST(RemoteMessage, WhatOthersHoldIsAskedAndTold) {
  const RemoteHello hello =
      through_a_line(RemoteHello{.version = "1", .held = true, .run_id = "r \xff"});
  EXPECT_TRUE(hello.held);
  EXPECT_EQ(hello.run_id, "r \xff");
  const RemoteInventory host{.version = "1",
                             .inventory = {.hosts = {{.name = "b"}}},
                             .held = {{.gpu = "GPU-1", .units = 500, .by = "held by \xff"},
                                      {.gpu = "GPU-2", .units = 1000}}};
  EXPECT_EQ(through_a_line(host).held, host.held);
  EXPECT_EQ(through_a_line(host.held[0]), host.held[0]);
}

// As it is, and with each of these in it: only the text of what is held makes the difference.
TEST(RemoteMessage, WhatOthersHoldIsChecked) {
  const auto host_with = [](const std::string& held) {
    std::string line =
        to_line(RemoteInventory{.version = "1", .inventory = {.hosts = {{.name = "b"}}}});
    const std::string none = "\"held\":[]";
    return line.replace(line.find(none), none.size(), "\"held\":" + held);
  };
  EXPECT_NO_THROW(remote_message_from(host_with(R"([{"gpu": "GPU-1", "units": 1, "by": "x"}])")));
  for (const char* const held : {"7",
                                 "{}",
                                 "[7]",
                                 "[{}]",
                                 R"([{"gpu": "GPU-1", "units": -1, "by": "x"}])",
                                 R"([{"gpu": "GPU-1", "units": 1.5, "by": "x"}])",
                                 R"([{"gpu": 1, "units": 1, "by": "x"}])",
                                 R"([{"gpu": "GPU-1", "units": 1, "by": "€"}])",
                                 R"([{"gpu": "GPU-1", "units": 1, "by": "x", "more": 1}])"}) {
    EXPECT_THROW(remote_message_from(host_with(held)), Error) << held;
  }
}

TEST(RemoteMessage, AServerThatWasStoppedSaysSo) {
  EXPECT_TRUE(through_a_line(RemoteCannot{.why = "no \xff", .stopped = true}).stopped);
  EXPECT_FALSE(through_a_line(RemoteCannot{.why = "no"}).stopped);
  EXPECT_THROW(remote_message_from(R"({"muster": "cannot", "why": "no", "stopped": 1})"), Error);
}

TEST(RemoteMessage, WhatIsNoneIsRefused) {
  for (
      const char* const line : {
          "",
          "{",
          "[]",
          "7",
          "{}",
          R"({"muster": 1})",
          R"({"muster": "what"})",
          R"({"muster": "end", "id": 1})",
          R"({"muster": "end", "id": -1, "grace": 0})",
          R"({"muster": "end", "id": 1.5, "grace": 0})",
          R"({"muster": "end", "id": 99999999999, "grace": 0})",
          R"({"muster": "end", "id": 1, "grace": -1})",
          R"({"muster": "end", "id": 1, "grace": 0, "more": 1})",
          R"({"muster": "end", "id": 1, "id": 2, "grace": 0})",
          R"({"muster": "signal", "signal": 9})",
          R"({"muster": "output", "id": 1, "bytes": "€"})",
          R"({"muster": "hello", "version": "1", "environment": ["A"]})",
          R"({"muster": "hello", "version": "1", "environment": ["=1"]})",
          R"({"muster": "begin", "run_dir": "relative", "mark": "a", "grace": 0})",
          R"({"muster": "begin", "run_dir": "/r", "mark": "", "grace": 0})",
          R"({"muster": "begin", "run_dir": "/r", "mark": "a", "earlier": [""], "grace": 0})",
          R"({"muster": "host", "version": "1", "inventory": "{}"})",
          R"({"muster": "ended", "id": 1, "exit_code": 256, "signal": 0, "sent_signal": 0})",
          R"({"muster": "start", "id": 1, "ranks": 1, "attempt": 0, "units": 1, "cpus": 1, "log": "a.log"})",
          R"({"muster": "start", "id": 1, "argv": ["a"], "ranks": 1, "attempt": 0, "units": 1, "cpus": 1, "log": ""})",
          R"({"muster": "start", "id": 1, "argv": ["a"], "ranks": 1, "attempt": 0, "units": 1001, "cpus": 1, "log": "a.log"})",
      }) {
    EXPECT_THROW(remote_message_from(line), Error) << line;
  }
}

}  // namespace
}  // namespace muster
