// Rank 0 receives a byte from every other rank, and answers each whether all have come. Every
// message has its own time limit, so that one rank that is missing does not keep rank 0 from
// hearing the others.
#include "muster/comm/host/monitored_barrier.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <future>
#include <memory>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {

namespace {

// A message of one byte that is under way. The carrier holds the byte too, since the caller may
// leave first.
struct Note {
  std::shared_ptr<std::byte> byte = std::make_shared<std::byte>();
  std::promise<std::exception_ptr> over;
  std::future<std::exception_ptr> error = over.get_future();
};
using NotePtr = std::shared_ptr<Note>;

constexpr std::byte kAllCame{1};
constexpr std::byte kSomeAreMissing{0};
constexpr std::byte kHere{1};  // a rank's to rank 0
constexpr milliseconds kLeastTimeToAnswer{1'000};

Part memory_of(const NotePtr& note) {
  return {.data = note->byte.get(), .bytes = 1};
}
Carrier::Done ending(const NotePtr& note) {
  return [note](const Ended& ended) {
    note->over.set_value(ended.error);
  };
}

// The next two start a message, and return at once.
NotePtr hear(Carrier& carrier, int from, int tag, milliseconds timeout) {
  const auto note = std::make_shared<Note>();
  carrier.receive(from, tag, memory_of(note), timeout, ending(note));
  return note;
}
NotePtr tell(Carrier& carrier, int to, int tag, std::byte what, milliseconds timeout) {
  const auto note = std::make_shared<Note>();
  *note->byte = what;
  carrier.send(to, tag, memory_of(note), timeout, ending(note));
  return note;
}

// An exception that is not muster's own is the backend's.
ErrorCode code_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.code();
  } catch (...) {
    return ErrorCode::backend_failed;
  }
}

[[noreturn]] void fail_for_missing(ErrorCode code, const Ints& missing, milliseconds timeout) {
  const char* const ranks = word_for(missing.size(), "Rank ", "Ranks ");
  const char* const they_do = word_for(missing.size(), "it does", "they do");
  throw Error(code,
              "[Rank 0]: ",
              ranks,
              join(missing, ", "),
              " failed to pass monitoredBarrier in ",
              timeout.count(),
              " ms; see what ",
              they_do,
              ", or give a longer timeout");
}

// Rank 0's part. Those that have come wait for an answer as long, and read it at once.
void hear_all(Carrier& carrier, int size, int tag, milliseconds timeout, bool name_all) {
  const Deadline deadline(timeout);
  std::vector<NotePtr> notes;
  for (int peer = 1; peer < size; ++peer)
    notes.push_back(hear(carrier, peer, tag, timeout));
  Ints came, missing;
  ErrorCode code = ErrorCode::timeout;
  for (int peer = 1; peer < size && (missing.empty() || name_all); ++peer) {
    const auto error = notes[peer - 1]->error.get();
    (error ? missing : came).push_back(peer);
    if (error)
      code = code_of(error);
  }
  const std::byte answer = missing.empty() ? kAllCame : kSomeAreMissing;
  std::vector<NotePtr> answers;
  for (const int peer : came) {
    const auto time = std::max(deadline.left(), kLeastTimeToAnswer);
    answers.push_back(tell(carrier, peer, tag, answer, time));
  }
  for (const NotePtr& told : answers)
    told->error.wait();
  if (!missing.empty())
    fail_for_missing(code, missing, timeout);
}

// Every other rank's part.
void report(Carrier& carrier, int rank, int tag, milliseconds timeout) {
  const NotePtr answer = hear(carrier, 0, tag, timeout);
  auto error = tell(carrier, 0, tag, kHere, timeout)->error.get();
  if (!error)
    error = answer->error.get();
  if (!error && *answer->byte == kAllCame)
    return;
  throw Error(error ? code_of(error) : ErrorCode::peer_failed,
              "[Rank ",
              rank,
              "]: Rank ",
              rank,
              " successfully reached monitoredBarrier, but received errors while waiting for "
              "send/recv from rank 0; its error names the rank that is missing");
}

}  // namespace

void monitored_barrier(
    Carrier& carrier, int rank, int size, int tag, milliseconds timeout, bool name_all) {
  if (timeout <= milliseconds(0)) {
    throw invalid_argument("[Rank ",
                           rank,
                           "]: Rank ",
                           rank,
                           " timed out in monitoredBarrier after ",
                           timeout.count(),
                           " ms; give a longer timeout");
  }
  if (rank == 0) {
    hear_all(carrier, size, tag, timeout, name_all);
  } else {
    report(carrier, rank, tag, timeout);
  }
}

}  // namespace muster
