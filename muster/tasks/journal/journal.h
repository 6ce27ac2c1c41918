// The journal of a run of tasks: what was started and what came of it, so that a run that was
// killed at any moment can go on. `<run_dir>/journal` is only appended to, a record a line: 16
// hexadecimal digits of the record's SHA-256, a blank, JSON. Every record but the first has the
// digits of the one before it (`after`), so that one that is gone is noticed. Beside it
// `tasks.json` has the tasks themselves, so that the folder is all that a later run needs (read.h).
// Written by the runner; knows nothing of processes.
//
// Records are handed to the kernel before what they announce happens, and are on the disk soon
// after (a thread of its own calls fdatasync, for all that came meanwhile at once). What follows
// from a record waits for that.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/tasks/task.h"

namespace muster {

// The first record.
struct JournalHead {
  std::string run_id{};
  std::string tasks_hash{};  // SHA-256 of tasks.json
  std::string mark{};        // MUSTER_MARK of all that this run starts
};

// The share of its devices that an attempt took, beside what TaskAttempt says.
struct TakenShare {
  uint64_t memory_bytes = 0;  // of each GPU
  int cpus = 0;
  bool operator==(const TakenShare&) const = default;
};

enum class AttemptEnd {
  done,
  failed,       // and no start is left
  again,        // failed, and is tried again
  interrupted,  // the run was ended: nobody's failure
  stopped,      // with exit code 75: it is started again, which costs no retry
  refused,      // a GPU or a process was not to be had: it never began, and is no attempt
};

std::string journal_path(const std::string& run_dir);

// Whether a run goes on in the folder.
bool is_in_use(const std::string& run_dir);

// SHA-256 as 64 hexadecimal digits.
std::string hash_of(const std::string& bytes);

class Journal : NoCopy {
 public:
  // Opens the folder's journal, makes it where there is none, and locks it. Blocking: a second,
  // when another run has it. Throws: failed_precondition when that does not end meanwhile; io.
  explicit Journal(const std::string& run_dir);
  ~Journal();

  // Records go on from here (JournalState::good_bytes), after the one with this sum; the rest is
  // cut off. The folder and its tasks.json are on the disk then. To be called once, first. Throws:
  // io.
  void begin_at(uint64_t bytes, const std::string& last_sum = {});

  // Each takes a record and gives its number, from 1.
  uint64_t head(const JournalHead& head, size_t num_tasks);
  uint64_t resume(const std::string& mark, double at);
  uint64_t mark(const std::string& mark, double at);  // one more, of this run
  uint64_t start(const std::string& task, const TaskAttempt& attempt, const TakenShare& share);
  uint64_t end(const std::string& task,
               const TaskAttempt& attempt,
               AttemptEnd how,
               const std::string& reason,
               const std::string& last_json);
  uint64_t skip(const std::string& task, const std::string& reason, double at);
  uint64_t finish(const std::string& why, double at);

  // Hands all records to the kernel: a kill of this process does not lose them any more. Throws: io
  // (disk full); the file then ends with the last whole record.
  void write();

  // Records up to this one are on the disk. Throws: io when the disk refused one.
  uint64_t on_disk();

  // Nothing else is to be done than to wait for the disk: no more records are gathered first.
  void hurry();

  // Becomes readable when on_disk() grows; take_notice() makes it wait again.
  int fd() const { return notice_.get(); }
  void take_notice();

  // Blocking: until all that was written is on the disk. Throws: io.
  void sync();

 private:
  bool cut();
  uint64_t append(std::string json);
  void keep_syncing();
  void throw_if_failed();

  std::string path_;
  Fd file_;
  Fd notice_;
  std::string buffer_;
  std::string last_sum_;   // of the last record
  uint64_t bytes_ = 0;     // of the file
  uint64_t appended_ = 0;  // records
  std::mutex mutex_;
  std::condition_variable written_more_;
  std::condition_variable hurried_;
  std::condition_variable synced_more_;
  uint64_t written_ = 0;  // handed to the kernel
  uint64_t synced_ = 0;   // on the disk
  int sync_errno_ = 0;
  bool syncer_sleeps_ = false;
  bool hurry_ = false;
  bool ending_ = false;
  std::thread syncer_;
};

}  // namespace muster
