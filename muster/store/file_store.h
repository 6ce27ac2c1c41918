// A store in a file that the processes of one host share: rendezvous by file:// without a server.
// Each rank opens it once, and stays a member until its FileStore is destroyed or its process ends.
//
// Leftovers and strangers. A member holds a lock that the kernel releases with it, so who lives is
// proven, never guessed:
// - no member lives: what the file holds is of an earlier run. It is started anew, with a warning
//   (a run that ends in order leaves an empty file, and none);
// - members live and belong to another job, or to one of another size: refused, naming both;
// - the rank is taken, or was taken by a process that has ended while others of its run live (their
//   run failed, its keys are stale): refused, naming both processes;
// - the file is something else, another user's, or of another host or boot (whose locks prove
//   nothing): refused.
// Two runs that start at the same moment with the same path, job and size cannot be told apart
// until a rank comes twice: give each its own job name.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/store/file_record.h"
#include "muster/store/store.h"
#include "muster/store/table.h"

namespace muster {

struct FileStoreOptions {
  std::string path{};
  std::string job{};  // what tells one job's file from another's, e.g. the run id
  int rank = 0;
  int world_size = 1;
  milliseconds lock_timeout{30'000};  // for one operation of the others
};

class FileStore final : public Store, NoCopy {
 public:
  // Joins. Throws: invalid_argument for a rank out of range; failed_precondition as told above; io.
  explicit FileStore(FileStoreOptions options);
  ~FileStore() override;

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key,
                          const std::string& expected,
                          const std::string& desired) override;
  bool check(const Strings& keys) override;
  void wait(const Strings& keys, milliseconds timeout) override;
  bool remove(const std::string& key) override;
  int64_t num_keys() override;

  // How many of the world's ranks have joined this run.
  int num_joined();

 private:
  class Operation;  // holds the locks, has read what is new

  void open_file();
  void join();
  void warn_of_leftover(const std::string& job) const;
  void take_rank();
  void start_anew(int64_t generation);
  void check_run(const FileRecord& header_record, int living);
  std::string who(int rank) const;
  void read_new_records();
  void apply(FileRecord record);
  void write_record(const FileRecord& record);
  off_t file_size() const;
  void wait_for(const char* operation,
                const Strings& keys,
                milliseconds timeout,
                std::string* value);

  const FileStoreOptions options_;
  const pid_t owner_;  // a forked child's copy must not leave for its parent
  std::mutex mutex_;
  Fd fd_;
  off_t read_to_ = 0;                   // end of the last whole record read
  std::map<int, std::string> members_;  // who joined, by rank
  Table table_;
};

}  // namespace muster
