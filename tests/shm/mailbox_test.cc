#include "muster/shm/mailbox.h"

#include <gmock/gmock.h>

#include <cstring>
#include <future>
#include <numeric>

#include "muster/base/strings.h"
#include "tests/shm/ranks.h"

namespace muster::shm {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kPatience{20};

std::future<int> send(Mailbox& box,
                      int to,
                      int tag,
                      std::vector<int>& data,
                      std::chrono::milliseconds timeout = kPatience) {
  auto promise = std::make_shared<std::promise<int>>();
  auto future = promise->get_future();
  box.send(to,
           tag,
           {.data = reinterpret_cast<std::byte*>(data.data()), .bytes = data.size() * sizeof(int)},
           timeout,
           [promise](int peer, const std::exception_ptr& error) {
             error ? promise->set_exception(error) : promise->set_value(peer);
           });
  return future;
}

std::future<int> receive(Mailbox& box,
                         int from,
                         int tag,
                         std::vector<int>& data,
                         std::chrono::milliseconds timeout = kPatience) {
  auto promise = std::make_shared<std::promise<int>>();
  auto future = promise->get_future();
  box.receive(
      from,
      tag,
      {.data = reinterpret_cast<std::byte*>(data.data()), .bytes = data.size() * sizeof(int)},
      timeout,
      [promise](int peer, const std::exception_ptr& error) {
        error ? promise->set_exception(error) : promise->set_value(peer);
      });
  return future;
}

std::vector<int> numbers(int first, size_t count) {
  std::vector<int> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
}

std::string message_error_of(std::future<int>& future) {
  try {
    future.get();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

// More than a channel holds, and all send before anybody receives.
TEST(Mailbox, AroundARing) {
  run_ranks(4, [](Team& team) {
    Mailbox box(team);
    const int next = (team.rank() + 1) % 4, before = (team.rank() + 3) % 4;
    for (const size_t count : {size_t{0}, size_t{1}, size_t{8192}, size_t{100'001}}) {
      auto sent = numbers(team.rank() * 7, count);
      std::vector<int> got(count);
      auto sending = send(box, next, 3, sent);
      auto receiving = receive(box, before, 3, got);
      EXPECT_EQ(receiving.get(), before);
      sending.get();
      ASSERT_EQ(got, numbers(before * 7, count));
    }
    team.arrive();
    team.wait_for_all({"end"}, Deadline(kPatience));
  });
}

TEST(Mailbox, TagsMayBeAskedForInAnyOrder) {
  run_ranks(2, [](Team& team) {
    Mailbox box(team);
    if (team.rank() == 0) {
      auto a = numbers(0, 50'000), b = numbers(100, 3), c = numbers(200, 3);
      auto first = send(box, 1, 1, a), second = send(box, 1, 2, b), third = send(box, 1, 1, c);
      first.get();
      second.get();
      third.get();
    } else {
      std::vector<int> a(50'000), b(3), c(3);
      receive(box, 0, 2, b).get();
      EXPECT_EQ(b, numbers(100, 3)) << "the first message waits";
      receive(box, 0, 1, a).get();
      receive(box, 0, 1, c).get();
      EXPECT_EQ(a, numbers(0, 50'000));
      EXPECT_EQ(c, numbers(200, 3)) << "in the order of sending";
    }
    team.arrive();
    team.wait_for_all({"end"}, Deadline(kPatience));
  });
}

TEST(Mailbox, FromAnybody) {
  run_ranks(3, [](Team& team) {
    Mailbox box(team);
    if (team.rank() == 0) {
      std::vector<int> a(2), b(2);
      const int first = receive(box, kAnySource, 5, a).get();
      const int second = receive(box, kAnySource, 5, b).get();
      EXPECT_EQ(first + second, 3);
      EXPECT_EQ(a, numbers(first * 10, 2));
      EXPECT_EQ(b, numbers(second * 10, 2));
    } else {
      auto mine = numbers(team.rank() * 10, 2);
      send(box, 0, 5, mine).get();
    }
    team.arrive();
    team.wait_for_all({"end"}, Deadline(kPatience));
  });
}

TEST(Mailbox, SizesThatDifferAreAnError) {
  run_ranks(2, [](Team& team) {
    Mailbox box(team);
    std::vector<int> data(3), more(4);
    if (team.rank() == 0) {
      send(box, 1, 0, more).get();
      send(box, 1, 0, data).get();
    } else {
      auto wrong = receive(box, 0, 0, data);
      EXPECT_THAT(message_error_of(wrong),
                  HasSubstr("expected 12 bytes from rank 0 with tag 0, got 16"));
      receive(box, 0, 0, data).get();  // the next message is whole
    }
    team.arrive();
    team.wait_for_all({"end"}, Deadline(kPatience));
  });
}

TEST(Mailbox, WhoLeftOrIsLateIsNamed) {
  run_ranks(3, [](Team& team) {
    if (team.rank() == 2)
      return;
    Mailbox box(team);
    if (team.rank() == 0) {
      std::vector<int> data(3);
      auto late = receive(box, 1, 0, data, std::chrono::milliseconds(30));
      EXPECT_THAT(message_error_of(late),
                  HasSubstr("recv from rank 1 (tag 0) on rank 0 of 3: Timed out waiting"));
      auto gone = receive(box, 2, 9, data);
      EXPECT_THAT(message_error_of(gone), HasSubstr("rank 2 left the group"));
      send(box, 1, 4, data).get();
    } else {
      std::vector<int> data(3);
      receive(box, 0, 4, data).get();
    }
  });
}

// The receiver's time is over when half of the message has come; the message stays whole for
// whoever asks next.
TEST(Mailbox, AMessageWhoseReceiverGaveUpIsWholeForTheNext) {
  run_ranks(2, [](Team& team) {
    constexpr size_t kNumbers = 100'000;  // more than a channel holds
    if (team.rank() == 0) {
      auto data = numbers(1, kNumbers);
      // The frame and half of the data by hand, then the rest.
      const MessageFrame frame{.bytes = 8'000, .tag = 0, .element = 4, .type = {}};
      team.memory()->reserve(team.layout().channel(0, 1), kChannelBytes);
      std::byte* const ring = team.at(team.layout().channel(0, 1));
      auto& words = *reinterpret_cast<ChannelWords*>(team.at(team.layout().channel_words(0, 1)));
      std::memcpy(ring, &frame, sizeof(frame));
      std::memcpy(ring + sizeof(frame), data.data(), 8'000);
      words.written = sizeof(frame) + 4'000;
      team.arrive();
      team.wait_for_all({"half"}, Deadline(kPatience));
      team.arrive();
      team.wait_for_all({"given up"}, Deadline(kPatience));
      words.written = sizeof(frame) + 8'000;
    } else {
      Mailbox box(team);
      team.arrive();
      team.wait_for_all({"half"}, Deadline(kPatience));
      std::vector<int> first(2'000), second(2'000);
      auto late = receive(box, 0, 0, first, std::chrono::milliseconds(30));
      EXPECT_THAT(message_error_of(late), HasSubstr("Timed out waiting"));
      team.arrive();
      team.wait_for_all({"given up"}, Deadline(kPatience));
      receive(box, 0, 0, second).get();
      EXPECT_EQ(second, numbers(1, 2'000));
    }
    team.arrive();
    team.wait_for_all({"end"}, Deadline(kPatience));
  });
}

TEST(Mailbox, OneThatGivesUpFailsAtOnce) {
  run_ranks(2, [](Team& team) {
    Mailbox box(team);
    std::vector<int> data(3);
    auto waiting = receive(box, team.rank() == 0 ? 1 : kAnySource, 0, data);
    if (team.rank() == 0)
      team.give_up();
    const std::string error = message_error_of(waiting);
    EXPECT_THAT(
        error,
        testing::AnyOf(HasSubstr("this rank has given up"), HasSubstr("no other rank is left")));
  });
}

}  // namespace
}  // namespace muster::shm
