#include "muster/comm/host/monitored_barrier.h"

#include <future>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using std::chrono::milliseconds;

// A message of one byte that is under way; what carries it holds the byte, since the caller may
// leave first.
struct Note {
  std::shared_ptr<std::byte> byte = std::make_shared<std::byte>();
  std::promise<std::exception_ptr> over;
  std::future<std::exception_ptr> error = over.get_future();
};
using NotePtr = std::shared_ptr<Note>;

constexpr std::byte kAllCame{1};

shm::Part memory_of(const NotePtr& note) {
  return {.data = note->byte.get(), .bytes = 1};
}
Carrier::Done ending(const NotePtr& note) {
  return [note](const Ended& ended) {
    note->over.set_value(ended.error);
  };
}

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

ErrorCode code_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.code();
  } catch (...) {
    return ErrorCode::backend_failed;
  }
}

void hear_all(Carrier& carrier, int size, int tag, milliseconds timeout, bool name_all) {
  const Deadline deadline(timeout);
  std::vector<NotePtr> notes;
  for (int peer = 1; peer < size; ++peer)
    notes.push_back(hear(carrier, peer, tag, timeout));
  std::vector<int> came, missing;
  ErrorCode code = ErrorCode::timeout;
  for (int peer = 1; peer < size && (missing.empty() || name_all); ++peer) {
    const auto error = notes[static_cast<size_t>(peer) - 1]->error.get();
    (error ? missing : came).push_back(peer);
    if (error)
      code = code_of(error);
  }
  std::vector<NotePtr> answers;
  for (const int peer : came) {
    const auto time =
        std::max(deadline.left(), milliseconds(1'000));  // they wait as long, and read at once
    answers.push_back(tell(carrier, peer, tag, missing.empty() ? kAllCame : std::byte{0}, time));
  }
  for (const NotePtr& answer : answers)
    answer->error.wait();
  if (missing.empty())
    return;
  throw Error(code,
              cat("[Rank 0]: Rank",
                  missing.size() > 1 ? "s " : " ",
                  join(missing, ", "),
                  " failed to pass monitoredBarrier in ",
                  timeout.count(),
                  " ms; see what ",
                  missing.size() > 1 ? "they do" : "it does",
                  ", or give a longer timeout"));
}

void come(Carrier& carrier, int rank, int tag, milliseconds timeout) {
  const NotePtr answer = hear(carrier, 0, tag, timeout);
  auto error = tell(carrier, 0, tag, kAllCame, timeout)->error.get();
  if (!error)
    error = answer->error.get();
  if (!error && *answer->byte == kAllCame)
    return;
  throw Error(
      error ? code_of(error) : ErrorCode::peer_failed,
      cat("[Rank ",
          rank,
          "]: Rank ",
          rank,
          " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
          "from rank 0; its error names the rank that is missing"));
}

}  // namespace

void monitored_barrier(
    Carrier& carrier, int rank, int size, int tag, milliseconds timeout, bool name_all) {
  if (timeout <= milliseconds(0)) {
    throw Error(ErrorCode::invalid_argument,
                cat("[Rank ",
                    rank,
                    "]: Rank ",
                    rank,
                    " timed out in monitoredBarrier after ",
                    timeout.count(),
                    " ms; give a longer timeout"));
  }
  if (rank == 0) {
    hear_all(carrier, size, tag, timeout, name_all);
  } else {
    come(carrier, rank, tag, timeout);
  }
}

}  // namespace muster
